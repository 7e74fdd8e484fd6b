/* Requests: registration, statistics, fence; the others go to the job or the controller. */
#include "switch.h"

bool is_equal(const uint8_t *a, const uint8_t *b) { /* in constant time */
    unsigned difference = 0;
    for (int i = 0; i < TOKEN_BYTES; i++) difference |= a[i] ^ b[i];
    return !difference;
}

bool is_name(const char *name, size_t size) {
    static const char ALLOWED[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
    if (!size || size > MAX_NAME) return false;
    for (size_t i = 0; i < size; i++)
        if (!name[i] || !strchr(ALLOWED, name[i])) return false;
    return true;
}

/* Return the job; make room for a new one by forgetting one that is not registered. */
static Job *find_job(const char *name) {
    Job *oldest = NULL;
    for (size_t i = 0; i < self.job_count; i++) {
        Job *job = &self.jobs[i];
        if (!strcmp(job->name, name)) return job;
        if (!is_registered(job) && (!oldest || job->registered_at < oldest->registered_at))
            oldest = job;
    }
    if (self.job_count < (size_t)options.max_jobs) oldest = &self.jobs[self.job_count++];
    if (!oldest) return NULL;
    Connection **members = oldest->members;
    if (!members) members = checked(calloc((size_t)options.max_ranks, sizeof *members));
    *oldest = (Job){.members = members, .settled = -1};
    snprintf(oldest->name, sizeof oldest->name, "%s", name);
    return oldest;
}

static void reset_job(Job *job, uint32_t ranks, const uint8_t *token) {
    memset(job->members, 0, (size_t)options.max_ranks * sizeof *job->members);
    memcpy(job->token, token, TOKEN_BYTES);
    job->ranks = ranks;
    job->settled = -1;
    job->why = 0;
}

static void admit(Connection *c, Job *job, uint32_t rank, uint32_t ranks, const uint8_t *token,
                  uint64_t epoch) {
    if (ranks != job->ranks)
        for (uint32_t i = 0; i < job->ranks; i++)
            if (job->members[i])
                end_with(job->members[i], SUPERSEDED,
                         "the job has %" PRIu32 " ranks since epoch %" PRIu64, ranks, epoch);
    if (!is_registered(job)) reset_job(job, ranks, token);
    if (job->members[rank]) {
        end_with(job->members[rank], SUPERSEDED, "rank %" PRIu32 " registered again", rank);
        if (!is_registered(job)) reset_job(job, ranks, token);
    }
    job->epoch = epoch;
    job->registered_at = ++self.registrations;
    job->members[rank] = c;
    c->job = job;
    c->rank = rank;
    uint32_t limits[6] = {(uint32_t)options.chunk_bytes, (uint32_t)options.window,
                          (uint32_t)options.slots, ranks};
    memcpy(&limits[4], &self.instance, sizeof self.instance);
    send_frame(c, (Header){.kind = WELCOME, .number = NO_NUMBER}, limits, sizeof limits);
}

static void register_rank(Connection *c, const Header *header) {
    if (header->size < HELLO_BYTES || header->epoch > MAX_NUMBER) {
        end_connection(c, BAD_REQUEST, "HELLO is too short or has no valid epoch");
        return;
    }
    uint32_t rank, ranks;
    memcpy(&rank, c->request, 4);
    memcpy(&ranks, c->request + 4, 4);
    const uint8_t *token = c->request + 8 + TOKEN_BYTES;
    char name[MAX_REQUEST + 1] = "";
    size_t size = header->size - HELLO_BYTES;
    memcpy(name, c->request + HELLO_BYTES, size);
    if (!is_equal(c->request + 8, self.token)) {
        end_connection(c, BAD_TOKEN, "the token is not the switch's");
        return;
    }
    if (!is_name(name, size) || rank >= ranks || ranks > (uint64_t)options.max_ranks) {
        end_with(c, BAD_REQUEST,
                 "the name is invalid, or rank %" PRIu32 " of %" PRIu32 " is out of range", rank,
                 ranks);
        return;
    }
    Job *job = find_job(name);
    uint64_t lowest = job && job->epoch > self.fence ? job->epoch : self.fence;
    if (!job)
        end_with(c, FULL, "the switch has %zu jobs", self.job_count);
    else if (is_registered(job) && !is_equal(token, job->token))
        end_with(c, NAME_IN_USE, "another job is registered as %s", job->name);
    else if (header->epoch < lowest)
        end_with(c, OLD_EPOCH, "epoch %" PRIu64 " is below %" PRIu64, header->epoch, lowest);
    else if (is_registered(job) && ranks != job->ranks && header->epoch == job->epoch)
        end_with(c, UNEQUAL, "the job has %" PRIu32 " ranks at epoch %" PRIu64 ", not %" PRIu32,
                 job->ranks, header->epoch, ranks);
    else
        admit(c, job, rank, ranks, token, header->epoch);
}

static PRINTF(3, 4) void append(char **text, size_t *size,
                                                         const char *format, ...) {
    char part[1024];
    va_list words;
    va_start(words, format);
    int count = vsnprintf(part, sizeof part, format, words);
    va_end(words);
    *text = checked(realloc(*text, *size + (size_t)count + 1));
    memcpy(*text + *size, part, (size_t)count + 1);
    *size += (size_t)count;
}

static void send_statistics(Connection *c) {
    char *text = NULL;
    size_t size = 0;
    int64_t used = 0;
    for (int64_t i = 0; i < options.slots; i++) used += self.slots[i].is_used;
    append(&text, &size,
           "{\"implementation\": \"c\", \"instance\": %" PRIu64 ", \"fence\": %" PRIu64
           ", \"slots\": %" PRId64 ", \"slots_in_use\": %" PRId64 ", \"connections\": %zu"
           ", \"bytes_in\": %" PRIu64 ", \"bytes_out\": %" PRIu64 ", \"sums\": %" PRIu64
           ", \"completed\": %" PRIu64 ", \"refusals\": {",
           self.instance, self.fence, options.slots, used, self.connection_count, self.bytes_in,
           self.bytes_out, self.sums, self.completed);
    for (int code = 1; code < CODES; code++)
        append(&text, &size, "%s\"%s\": %" PRIu64, code > 1 ? ", " : "", CODE_NAMES[code],
               self.refusals[code]);
    append(&text, &size,
           "}, \"controlled\": %s, \"incarnation\": %" PRIu64 ", \"admission\": %" PRIu64
           ", \"floors\": {",
           options.controlled ? "true" : "false", self.incarnation, self.admission);
    for (size_t i = 0; i < self.floor_count; i++)
        append(&text, &size, "%s\"%s\": %" PRIu64, i ? ", " : "", self.floors[i].name,
               self.floors[i].epoch);
    append(&text, &size, "}, \"jobs\": [");
    bool is_first = true;
    for (size_t i = 0; i < self.job_count; i++) {
        const Job *job = &self.jobs[i];
        if (!is_registered(job)) continue;
        uint32_t registered = 0;
        for (uint32_t rank = 0; rank < job->ranks; rank++) registered += job->members[rank] != NULL;
        append(&text, &size,
               "%s{\"name\": \"%s\", \"ranks\": %" PRIu32 ", \"registered\": %" PRIu32
               ", \"epoch\": %" PRIu64 ", \"settled\": %" PRId64 ", \"running\": %" PRId64
               ", \"has_slot\": %s}",
               is_first ? "" : ", ", job->name, job->ranks, registered, job->epoch, job->settled,
               job->is_running ? (int64_t)job->number : -1, job->slot ? "true" : "false");
        is_first = false;
    }
    append(&text, &size, "]}");
    send_frame(c, (Header){.kind = STATISTICS, .number = NO_NUMBER}, text, size);
    free(text);
}

static void control(Connection *c, const Header *header) {
    if (header->size != TOKEN_BYTES || !is_equal(c->request, self.token)) {
        end_connection(c, BAD_TOKEN, "the token is not the switch's");
    } else if (header->kind == STATS) {
        send_statistics(c);
    } else if (header->epoch > MAX_NUMBER) {
        end_connection(c, BAD_REQUEST, "the epoch is above 2**63 - 1");
    } else {
        if (header->epoch > self.fence) self.fence = header->epoch;
        Header answer = {.kind = FENCED, .number = NO_NUMBER, .epoch = self.fence};
        send_frame(c, answer, NULL, 0);
    }
}

void serve_request(Connection *c, const Header *header) {
    bool is_about_number = header->kind == BEGIN || header->kind == CANCEL;
    if (c->pending_size > PENDING_LIMIT) {
        end_connection(c, BAD_REQUEST, "the client does not read what it requests");
    } else if (header->kind == STATS || header->kind == FENCE) {
        control(c, header);
    } else if (header->kind == GREET && !c->job) {
        greet(c, header);
    } else if (header->kind == HELLO && !c->job) {
        register_rank(c, header);
    } else if (is_about_number && c->job &&
               (header->number > MAX_NUMBER || header->epoch > MAX_NUMBER)) {
        end_connection(c, BAD_REQUEST, "a number or an epoch is above 2**63 - 1");
    } else if (header->kind == BEGIN && c->job && header->size == 8) {
        uint64_t values;
        memcpy(&values, c->request, sizeof values);
        if (values / ((uint64_t)options.chunk_bytes / 4) >= UINT32_MAX)
            end_connection(c, BAD_REQUEST, "the buffer has too many chunks");
        else
            begin_number(c, header, values);
    } else if (header->kind == CANCEL && c->job) {
        cancel_number(c, header->number);
    } else {
        end_with(c, BAD_REQUEST, "frame of kind %d is not allowed here", header->kind);
    }
}
