/* AllReduces of the jobs: which is summed, refused or over. */
#include "switch.h"

static uint32_t chunk_count(uint64_t values) {
    uint64_t per_chunk = (uint64_t)options.chunk_bytes / 4;
    uint64_t count = values / per_chunk + (values % per_chunk != 0);
    return count ? (uint32_t)count : 1;
}

size_t chunk_size(uint64_t values, uint32_t index) {
    uint64_t left = values * 4 - (uint64_t)index * (uint64_t)options.chunk_bytes;
    return left < (uint64_t)options.chunk_bytes ? (size_t)left : (size_t)options.chunk_bytes;
}

uint8_t *input_memory(const Job *job, uint32_t rank, uint32_t index) {
    size_t place = (size_t)rank * (size_t)options.window + index % (size_t)options.window;
    return job->slot->memory + place * (size_t)options.chunk_bytes;
}

static uint8_t *sum_memory(const Job *job, uint32_t index) {
    return input_memory(job, job->ranks, index); /* behind the inputs of all ranks */
}

/* Send the reason for the end of a connection, then read until the peer closes it: a close with
 * unread input could lose the reason. */
void end_connection(Connection *c, enum Code code, const char *reason) {
    if (c->is_ending) return;
    c->is_active = false;
    send_refused(c, code, NO_NUMBER, reason);
    c->is_ending = true;
    c->since_s = now();
    leave(c, reason);
}

void end_with(Connection *c, enum Code code, const char *format, ...) {
    char reason[MAX_REASON + 1];
    va_list words;
    va_start(words, format);
    vsnprintf(reason, sizeof reason, format, words);
    va_end(words);
    end_connection(c, code, reason);
}

bool is_registered(const Job *job) {
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        if (job->members[rank]) return true;
    return false;
}

static void release_slot(Job *job) {
    if (!job->slot || job->is_running) return;
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        if (job->members[rank] && job->members[rank]->is_active) return;
    job->slot->is_used = false;
    job->slot = NULL;
}

/* Refuse numbers up to this one, to all ranks that have begun the running one. */
static void settle(Job *job, uint64_t number, enum Code code, const char *reason) {
    bool was_running = job->is_running;
    job->is_running = false;
    job->settled = (int64_t)number;
    job->why = (int)code;
    snprintf(job->reason, sizeof job->reason, "%s", reason);
    for (uint32_t rank = 0; was_running && rank < job->ranks; rank++) {
        Connection *member = job->members[rank];
        if (member && member->is_active && member->number == job->number) {
            member->is_active = false;
            send_refused(member, code, job->number, job->reason);
        }
    }
    release_slot(job);
}

/* Refuse a number of a rank, and with it of all ranks. */
static PRINTF(4, 5) void refuse(Connection *c, uint64_t number, enum Code code, const char *format,
                                ...) {
    char reason[MAX_REASON + 1];
    va_list words;
    va_start(words, format);
    vsnprintf(reason, sizeof reason, format, words);
    va_end(words);
    Job *job = c->job;
    if ((int64_t)number > job->settled && !(job->is_running && number < job->number))
        settle(job, number, code, reason);
    send_refused(c, code, number, reason);
}

/* Remove a rank from its job; refuse what is under way. */
void leave(Connection *c, const char *why) {
    Job *job = c->job;
    if (!job) return;
    c->job = NULL;
    c->is_active = false;
    job->members[c->rank] = NULL;
    char reason[MAX_REASON + 1];
    snprintf(reason, sizeof reason, "rank %" PRIu32 ": %s", c->rank, why);
    if (job->is_running) settle(job, job->number, RANK_LOST, reason);
    release_slot(job);
}

static bool take_slot(Job *job) {
    for (int64_t i = 0; i < options.slots && !job->slot; i++)
        if (!self.slots[i].is_used) job->slot = &self.slots[i];
    if (!job->slot) return false;
    size_t chunks = (size_t)options.window * (job->ranks + 1);
    size_t size = chunks * (size_t)options.chunk_bytes;
    if (job->slot->capacity < size) { /* never while it has sums: a job's ranks do not change */
        free(job->slot->memory);
        job->slot->memory = malloc(size);
        job->slot->capacity = job->slot->memory ? size : 0;
        if (!job->slot->memory) {
            job->slot = NULL;
            return false;
        }
    }
    return job->slot->is_used = true;
}

/* Open an AllReduce that its first rank begins; false if it is refused. */
static bool open_all_reduce(Connection *c, const Header *header, uint64_t values) {
    Job *job = c->job;
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        if (!job->members[rank]) {
            refuse(c, header->number, RANK_LOST, "rank %" PRIu32 " is not registered", rank);
            return false;
        }
    if (!take_slot(job)) {
        refuse(c, header->number, NO_SLOT, "other jobs use all slots (%" PRId64 ")", options.slots);
        return false;
    }
    job->is_running = true;
    job->number = header->number;
    job->running_epoch = header->epoch;
    job->values = values;
    job->chunks = chunk_count(values);
    job->summed = 0;
    return true;
}

/* Let a rank begin an AllReduce, or refuse it for all ranks. */
void begin_number(Connection *c, const Header *header, uint64_t values) {
    Job *job = c->job;
    uint64_t number = header->number, lowest = job->epoch > self.fence ? job->epoch : self.fence;
    if (c->is_active) {
        end_connection(c, BAD_REQUEST, "a rank begins an AllReduce before it has all sums");
        return;
    }
    const Floor *floor = floor_of(job->name);
    if (options.controlled && !floor) {
        refuse(c, number, NOT_ADMITTED, "the controller does not admit job %s", job->name);
        return;
    }
    if (floor && floor->epoch > lowest) lowest = floor->epoch;
    if (header->epoch < lowest) {
        refuse(c, number, OLD_EPOCH, "epoch %" PRIu64 " is below %" PRIu64, header->epoch, lowest);
        return;
    }
    if ((int64_t)number <= job->settled || (job->is_running && number < job->number)) {
        if ((int64_t)number == job->settled && job->why)
            send_refused(c, (enum Code)job->why, number, job->reason);
        else
            refuse(c, number, OLD_NUMBER, "number %" PRIu64 " is over", number);
        return;
    }
    if (job->is_running && (job->number != number || job->running_epoch != header->epoch ||
                            job->values != values)) {
        refuse(c, number, UNEQUAL,
               "rank %" PRIu32 " has number %" PRIu64 ", epoch %" PRIu64 ", %" PRIu64 " values; "
               "another rank has number %" PRIu64 ", epoch %" PRIu64 ", %" PRIu64 " values",
               c->rank, number, header->epoch, values, job->number, job->running_epoch,
               job->values);
        return;
    }
    if (!job->is_running && !open_all_reduce(c, header, values)) return;
    job->epoch = header->epoch;
    job->progress_s = now();
    c->is_active = true;
    c->number = number;
    c->values = values;
    c->chunks = job->chunks;
    c->received = c->sent = 0;
}

/* Sum a chunk of all ranks, in the order of ranks: ((r0 + r1) + r2) + ... */
static void add_chunk(const Job *job, uint32_t index) {
    size_t size = chunk_size(job->values, index);
    float *restrict total = (float *)(void *)sum_memory(job, index);
    memcpy(total, input_memory(job, 0, index), size);
    for (uint32_t rank = 1; rank < job->ranks; rank++) {
        const float *restrict values = (const float *)(void *)input_memory(job, rank, index);
        for (size_t i = 0; i < size / 4; i++) total[i] += values[i];
    }
    self.sums++;
}

/* Count a chunk of a rank that is complete; add what all ranks have sent. */
void chunk_received(Connection *c) {
    Job *job = c->job;
    c->received++;
    job->progress_s = now();
    uint32_t least = job->chunks;
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        const Connection *m = job->members[rank];
        uint32_t received = m && m->is_active && m->number == job->number ? m->received : 0;
        if (received < least) least = received;
    }
    if (least == job->summed) return;
    while (job->summed < least) add_chunk(job, job->summed++);
    if (job->summed == job->chunks) {
        job->settled = (int64_t)job->number;
        job->why = 0;
        job->is_running = false;
        self.completed++;
    }
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        if (job->members[rank]) mark_changed(job->members[rank]);
}

/* Let the next SUM frame of a rank be sent, if there is one. */
bool next_sum(Connection *c) {
    Job *job = c->job;
    if (!job || !c->is_active) return false;
    bool is_running = job->is_running && job->number == c->number;
    if (c->sent >= (is_running ? job->summed : c->chunks)) return false;
    size_t size = chunk_size(c->values, c->sent);
    c->sum_header = (Header){MAGIC, VERSION, SUM, 0, (uint32_t)size, c->sent, c->number, 0};
    c->sum_payload = sum_memory(job, c->sent);
    c->sum_size = HEADER_BYTES + size;
    c->sum_done = 0;
    return true;
}

/* Count a sum that a rank got; the slot is free after the last one of all ranks. */
void sum_sent(Connection *c) {
    c->sum_size = 0;
    c->job->progress_s = now();
    if (++c->sent == c->chunks) {
        c->is_active = false;
        release_slot(c->job);
    }
}

/* Whether the others wait for this rank: for its next chunk, or to take its sums. */
static bool is_silent(const Job *job, const Connection *c) {
    if (job->is_running && c->is_active && c->number == job->number)
        return c->received == job->summed;
    return c->is_active || job->is_running;
}

/* Refuse the AllReduce without progress, and end the registration of its silent ranks. */
void expire(Job *job) {
    char names[MAX_REASON / 2] = "", reason[MAX_REASON + 1];
    bool silent[job->ranks];
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        silent[rank] = job->members[rank] && is_silent(job, job->members[rank]);
        size_t used = strlen(names);
        if (silent[rank] && used + 16 < sizeof names)
            snprintf(names + used, sizeof names - used, "%s%" PRIu32, used ? ", " : "", rank);
    }
    snprintf(reason, sizeof reason, "no progress of rank %s for %g s", names,
             (double)options.lease_ms / 1000);
    if (job->is_running) settle(job, job->number, RANK_LOST, reason);
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        if (silent[rank] && job->members[rank])
            end_connection(job->members[rank], RANK_LOST, "the rank was silent for the lease");
}

/* Refuse a number that a rank does not want, unless its last sum was computed. */
void cancel_number(Connection *c, uint64_t number) {
    if ((int64_t)number <= c->job->settled) return;
    if (c->is_active && c->number == number) {
        char reason[MAX_REASON + 1];
        snprintf(reason, sizeof reason, "rank %" PRIu32 " cancelled", c->rank);
        settle(c->job, number, CANCELLED, reason);
    } else {
        refuse(c, number, CANCELLED, "rank %" PRIu32 " cancelled", c->rank);
    }
}

/* Refuse the AllReduce under way if the admission in force excludes it. */
void evict(Job *job) {
    const Floor *floor = floor_of(job->name);
    char reason[MAX_REASON + 1];
    if (!job->is_running || (floor && job->running_epoch >= floor->epoch)) return;
    if (floor)
        snprintf(reason, sizeof reason, "epoch %" PRIu64 " is below %" PRIu64, job->running_epoch,
                 floor->epoch);
    else
        snprintf(reason, sizeof reason, "the controller does not admit job %s", job->name);
    settle(job, job->number, floor ? OLD_EPOCH : NOT_ADMITTED, reason);
}
