/* Software aggregator that stands in for a switch that sums AllReduces.
 *
 * It speaks the protocol that presage/collectives/switch/protocol.py describes and takes the
 * options of options.py as pairs "--name value"; the SHA-256 of its token is in the environment
 * variable PRESAGE_SWITCH_TOKEN_SHA256. It prints "listening PORT" and serves until it is killed.
 *
 * The parts, in order: values, output, jobs (which AllReduce is summed, refused, over), input,
 * requests, and the event loop. The pure-Python aggregator has the same parts; tests hold both to
 * one contract.
 *
 * One thread, level-triggered epoll. Memory is bounded: a slot has (window * (ranks + 1)) chunks; a
 * connection has its state, at most PENDING_LIMIT bytes of answers, and the rest of one chunk.
 * Functions never free a connection: they mark it, and the event loop frees it at the end of a
 * turn, so that pointers stay valid during a turn.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the protocol is little-endian; use the pure-Python aggregator"
#endif

/* Values ---------------------------------------------------------------------------------------- */

enum { MAGIC = 0x434E4950, VERSION = 1, HEADER_BYTES = 32, MAX_REQUEST = 256, TOKEN_BYTES = 32 };
enum { MAX_NAME = 64, MAX_REASON = 200, PENDING_LIMIT = 1 << 20, SEND_BYTES = 256 << 10 };
enum { HELLO_BYTES = 8 + 2 * TOKEN_BYTES, EVENTS = 256, READS = 8, BACKLOG = 1024 };
#define NO_NUMBER UINT64_MAX
#define MAX_NUMBER ((uint64_t)INT64_MAX)
#define GREETING_S 5.0

enum Kind { HELLO = 1, WELCOME, BEGIN, CHUNK, SUM, REFUSED, CANCEL, STATS, STATISTICS, FENCE, FENCED };
enum Code {
    NO_SLOT = 1, OLD_EPOCH, OLD_NUMBER, UNEQUAL, RANK_LOST, CANCELLED, BAD_TOKEN, NAME_IN_USE, FULL,
    BAD_REQUEST, SUPERSEDED, CODES
};
static const char *const CODE_NAMES[CODES] = {
    "", "no_slot", "old_epoch", "old_number", "unequal", "rank_lost", "cancelled", "bad_token",
    "name_in_use", "full", "bad_request", "superseded"};

typedef struct {
    uint32_t magic;
    uint8_t version, kind;
    uint16_t code;
    uint32_t size, index;
    uint64_t number, epoch;
} Header;
_Static_assert(sizeof(Header) == HEADER_BYTES, "the header has no padding");

typedef struct { /* chunks of a job: inputs by rank and place, then sums by place */
    uint8_t *memory;
    size_t capacity;
    bool is_used;
} Slot;

typedef struct Connection Connection;

typedef struct {
    char name[MAX_NAME + 1];
    uint8_t token[TOKEN_BYTES];
    uint64_t epoch, registered_at; /* the latter orders jobs by their last registration */
    uint32_t ranks;
    Connection **members; /* by rank; NULL if not registered */
    Slot *slot;
    double progress_s;
    bool is_running;
    uint64_t number, running_epoch, values; /* of the running AllReduce */
    uint32_t chunks, summed;
    int64_t settled; /* highest number that completed or was refused; -1 if none */
    int why;         /* code by which it was refused; 0 if it completed */
    char reason[MAX_REASON + 1];
} Job;

struct Connection {
    int fd;
    uint32_t events;
    double since_s;
    bool is_ending, is_shut, is_closed, is_changed;
    Connection *next_changed;
    size_t place; /* in the table of connections */
    /* As a rank of a job; is_active while it does not have all sums of the AllReduce it began. */
    Job *job;
    uint32_t rank;
    bool is_active;
    uint64_t number, values;
    uint32_t chunks, received, sent;
    /* Input: a header, then a payload into target; without a target it is dropped. */
    Header header;
    uint8_t *target;
    size_t left;
    bool in_payload, is_chunk;
    uint8_t request[MAX_REQUEST];
    /* Output: the rest of a SUM frame, then answers that are pending, then further sums. */
    uint8_t *pending;
    size_t pending_size, pending_capacity;
    Header sum_header;
    uint8_t *sum_payload;
    size_t sum_size, sum_done; /* of header and payload; size 0 if there is none */
};

static struct {
    const char *host;
    int64_t port, slots, chunk_bytes, window, max_ranks, max_jobs, max_connections, lease_ms, fence,
        parent;
} options = {"127.0.0.1", 0, 1, 64 << 10, 16, 64, 256, 4096, 5000, 0, 0};

static struct {
    uint8_t token[TOKEN_BYTES];
    uint64_t instance, fence, registrations;
    int epoll, listener;
    Slot *slots;
    Job *jobs;
    size_t job_count;
    Connection **connections;
    size_t connection_count;
    Connection *changed; /* those that may have something to send, or are closed */
    uint64_t bytes_in, bytes_out, sums, completed, refusals[CODES];
} self;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *checked(void *memory) {
    if (!memory) {
        fprintf(stderr, "switch: out of memory\n");
        exit(1);
    }
    return memory;
}

static uint32_t chunk_count(uint64_t values) {
    uint64_t per_chunk = (uint64_t)options.chunk_bytes / 4;
    uint64_t count = values / per_chunk + (values % per_chunk != 0);
    return count ? (uint32_t)count : 1;
}

static size_t chunk_size(uint64_t values, uint32_t index) {
    uint64_t left = values * 4 - (uint64_t)index * (uint64_t)options.chunk_bytes;
    return left < (uint64_t)options.chunk_bytes ? (size_t)left : (size_t)options.chunk_bytes;
}

static uint8_t *input_memory(const Job *job, uint32_t rank, uint32_t index) {
    size_t place = (size_t)rank * (size_t)options.window + index % (size_t)options.window;
    return job->slot->memory + place * (size_t)options.chunk_bytes;
}

static uint8_t *sum_memory(const Job *job, uint32_t index) {
    return input_memory(job, job->ranks, index); /* behind the inputs of all ranks */
}

/* Output ---------------------------------------------------------------------------------------- */

static void mark_changed(Connection *c) {
    if (!c->is_changed) {
        c->is_changed = true;
        c->next_changed = self.changed;
        self.changed = c;
    }
}

/* Put bytes into the pending output, at its end or in front. */
static void put_bytes(Connection *c, const void *bytes, size_t size, bool in_front) {
    if (c->pending_size + size > c->pending_capacity) {
        c->pending_capacity = 2 * (c->pending_size + size);
        c->pending = checked(realloc(c->pending, c->pending_capacity));
    }
    if (in_front) memmove(c->pending + size, c->pending, c->pending_size);
    if (size) memcpy(c->pending + (in_front ? 0 : c->pending_size), bytes, size);
    c->pending_size += size;
    mark_changed(c);
}

static void send_frame(Connection *c, Header header, const void *payload, size_t size) {
    header.magic = MAGIC;
    header.version = VERSION;
    header.size = (uint32_t)size;
    put_bytes(c, &header, sizeof header, false);
    put_bytes(c, payload, size, false);
}

/* Send REFUSED, and complete frames without the memory of a slot. */
static void send_refused(Connection *c, enum Code code, uint64_t number, const char *reason) {
    if (c->sum_size) { /* the rest of the frame comes before what waits for its end */
        size_t head = c->sum_done < HEADER_BYTES ? HEADER_BYTES - c->sum_done : 0;
        size_t body = c->sum_size - c->sum_done - head;
        put_bytes(c, c->sum_payload + (c->sum_size - HEADER_BYTES - body), body, true);
        put_bytes(c, (uint8_t *)&c->sum_header + (HEADER_BYTES - head), head, true);
        c->sum_size = 0;
    }
    if (c->is_chunk) {
        c->is_chunk = false;
        c->target = NULL;
    }
    self.refusals[code]++;
    Header header = {.kind = REFUSED, .code = (uint16_t)code, .number = number};
    send_frame(c, header, reason, strnlen(reason, MAX_REASON));
}

/* Jobs ------------------------------------------------------------------------------------------ */

static void leave(Connection *c, const char *why);

/* End a connection: tell why, then read until the peer closes it, so that it gets the reason. */
static void end(Connection *c, enum Code code, const char *reason) {
    if (c->is_ending) return;
    send_refused(c, code, NO_NUMBER, reason);
    c->is_ending = true;
    c->since_s = now();
    leave(c, reason);
}

static __attribute__((format(printf, 3, 4))) void end_with(Connection *c, enum Code code,
                                                           const char *format, ...) {
    char reason[MAX_REASON + 1];
    va_list words;
    va_start(words, format);
    vsnprintf(reason, sizeof reason, format, words);
    va_end(words);
    end(c, code, reason);
}

static bool is_registered(const Job *job) {
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

/* Refuse numbers up to this one; tell the ranks that have begun the running one. */
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
static __attribute__((format(printf, 4, 5))) void refuse(Connection *c, uint64_t number,
                                                         enum Code code, const char *format, ...) {
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
static void leave(Connection *c, const char *why) {
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
        refuse(c, header->number, NO_SLOT, "other jobs have all %" PRId64 " slots", options.slots);
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

static void begin(Connection *c, const Header *header, uint64_t values) {
    Job *job = c->job;
    uint64_t number = header->number, lowest = job->epoch > self.fence ? job->epoch : self.fence;
    if (c->is_active) {
        end(c, BAD_REQUEST, "a rank begins an AllReduce before it has the sums of the last");
        return;
    }
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
               "rank %" PRIu32 " has number %" PRIu64 ", epoch %" PRIu64 ", %" PRIu64
               " values; another rank has number %" PRIu64 ", epoch %" PRIu64 ", %" PRIu64 " values",
               c->rank, number, header->epoch, values, job->number, job->running_epoch, job->values);
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
static void chunk_received(Connection *c) {
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
static bool next_sum(Connection *c) {
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
static void sum_sent(Connection *c) {
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
static void expire(Job *job) {
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
            end(job->members[rank], RANK_LOST, "the rank was silent for the lease");
}

/* Requests -------------------------------------------------------------------------------------- */

static bool is_equal(const uint8_t *a, const uint8_t *b) { /* in constant time */
    unsigned difference = 0;
    for (int i = 0; i < TOKEN_BYTES; i++) difference |= a[i] ^ b[i];
    return !difference;
}

static bool is_name(const char *name, size_t size) {
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
        end(c, BAD_REQUEST, "HELLO is too short or has no valid epoch");
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
        end(c, BAD_TOKEN, "the token is not the switch's");
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

static __attribute__((format(printf, 3, 4))) void append(char **text, size_t *size,
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
        end(c, BAD_TOKEN, "the token is not the switch's");
    } else if (header->kind == STATS) {
        send_statistics(c);
    } else if (header->epoch > MAX_NUMBER) {
        end(c, BAD_REQUEST, "the epoch is above 2**63 - 1");
    } else {
        if (header->epoch > self.fence) self.fence = header->epoch;
        Header answer = {.kind = FENCED, .number = NO_NUMBER, .epoch = self.fence};
        send_frame(c, answer, NULL, 0);
    }
}

static void cancel(Connection *c, uint64_t number) {
    if ((int64_t)number <= c->job->settled) return;
    if (c->is_active && c->number == number) {
        char reason[MAX_REASON + 1];
        snprintf(reason, sizeof reason, "rank %" PRIu32 " cancelled", c->rank);
        settle(c->job, number, CANCELLED, reason);
    } else {
        refuse(c, number, CANCELLED, "rank %" PRIu32 " cancelled", c->rank);
    }
}

static void serve_request(Connection *c, const Header *header) {
    bool is_about_number = header->kind == BEGIN || header->kind == CANCEL;
    if (c->pending_size > PENDING_LIMIT) {
        end(c, BAD_REQUEST, "the client does not read what it requests");
    } else if (header->kind == STATS || header->kind == FENCE) {
        control(c, header);
    } else if (header->kind == HELLO && !c->job) {
        register_rank(c, header);
    } else if (is_about_number && c->job &&
               (header->number > MAX_NUMBER || header->epoch > MAX_NUMBER)) {
        end(c, BAD_REQUEST, "a number or an epoch is above 2**63 - 1");
    } else if (header->kind == BEGIN && c->job && header->size == 8) {
        uint64_t values;
        memcpy(&values, c->request, sizeof values);
        if (values / ((uint64_t)options.chunk_bytes / 4) >= UINT32_MAX)
            end(c, BAD_REQUEST, "the buffer has too many chunks");
        else
            begin(c, header, values);
    } else if (header->kind == CANCEL && c->job) {
        cancel(c, header->number);
    } else {
        end_with(c, BAD_REQUEST, "frame of kind %d is not allowed here", header->kind);
    }
}

/* Input ----------------------------------------------------------------------------------------- */

static void expect_header(Connection *c) {
    c->in_payload = c->is_chunk = false;
    c->target = (uint8_t *)&c->header;
    c->left = HEADER_BYTES;
}

/* Choose where the payload of a chunk goes: memory of the slot, or nowhere if it is too late. */
static void expect_chunk(Connection *c) {
    const Header *header = &c->header;
    Job *job = c->job;
    if (!job) {
        end(c, BAD_REQUEST, "chunk before a registration");
        return;
    }
    c->target = NULL;
    if (!c->is_active || !job->is_running || c->number != job->number ||
        header->number != c->number) {
        if (header->number > MAX_NUMBER || (int64_t)header->number > job->settled ||
            header->size > (uint64_t)options.chunk_bytes)
            end_with(c, BAD_REQUEST, "chunk of number %" PRIu64 ", which the rank has not begun",
                     header->number);
        return;
    }
    if (header->index != c->received || header->index >= c->chunks ||
        header->index >= (uint64_t)c->sent + (uint64_t)options.window)
        end_with(c, BAD_REQUEST, "chunk %" PRIu32 " is not the next one or exceeds the window",
                 header->index);
    else if (header->size != chunk_size(c->values, header->index) ||
             header->epoch != job->running_epoch)
        end_with(c, BAD_REQUEST, "chunk %" PRIu32 " has another size or epoch than announced",
                 header->index);
    else {
        c->target = input_memory(job, c->rank, header->index);
        c->is_chunk = true;
    }
}

static void take_header(Connection *c) {
    if (c->header.magic != MAGIC) {
        end(c, BAD_REQUEST, "not a frame of this protocol");
    } else if (c->header.version != VERSION) {
        end_with(c, BAD_REQUEST, "version %d of the protocol; this is version %d",
                 c->header.version, VERSION);
    } else {
        c->in_payload = true;
        c->left = c->header.size;
        if (c->header.kind == CHUNK)
            expect_chunk(c);
        else if (c->header.size > MAX_REQUEST)
            end_with(c, BAD_REQUEST, "payload of %" PRIu32 " bytes; the limit is %d",
                     c->header.size, MAX_REQUEST);
        else
            c->target = c->request;
    }
}

/* Go on after a complete header or payload. */
static void advance(Connection *c) {
    if (!c->in_payload) {
        take_header(c);
        return;
    }
    Header header = c->header;
    bool is_chunk = c->is_chunk;
    expect_header(c);
    if (header.kind != CHUNK)
        serve_request(c, &header);
    else if (is_chunk)
        chunk_received(c);
}

static void close_connection(Connection *c) {
    c->is_closed = true;
    leave(c, "connection closed");
    mark_changed(c);
}

static void read_frames(Connection *c) {
    static uint8_t dropped[64 << 10];
    for (int i = 0; i < READS; i++) {
        bool is_dropped = c->is_ending || !c->target;
        size_t size = c->left;
        if (c->is_ending || (is_dropped && size > sizeof dropped)) size = sizeof dropped;
        ssize_t count = recv(c->fd, is_dropped ? dropped : c->target, size, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (count <= 0) {
            close_connection(c);
            return;
        }
        self.bytes_in += (uint64_t)count;
        if (c->is_ending) continue;
        if (c->target) c->target += count;
        c->left -= (size_t)count;
        while (!c->left && !c->is_ending) advance(c);
    }
}

/* Event loop ------------------------------------------------------------------------------------ */

/* Send until the socket takes no more. */
static void write_frames(Connection *c) {
    while (c->sum_size || c->pending_size || next_sum(c)) {
        struct iovec parts[2] = {{c->pending, c->pending_size}, {NULL, 0}};
        if (c->sum_size) {
            size_t head = c->sum_done < HEADER_BYTES ? HEADER_BYTES - c->sum_done : 0;
            size_t body = c->sum_size - c->sum_done - head;
            parts[0] = (struct iovec){(uint8_t *)&c->sum_header + (HEADER_BYTES - head), head};
            parts[1] = (struct iovec){c->sum_payload + (c->sum_size - HEADER_BYTES - body), body};
        }
        ssize_t count = writev(c->fd, parts, 2);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (count < 0) {
            close_connection(c);
            return;
        }
        self.bytes_out += (uint64_t)count;
        if (c->sum_size) {
            c->sum_done += (size_t)count;
            if (c->sum_done == c->sum_size) sum_sent(c);
        } else {
            c->pending_size -= (size_t)count;
            memmove(c->pending, c->pending + count, c->pending_size);
        }
    }
}

static void free_connection(Connection *c) {
    Connection *last = self.connections[--self.connection_count];
    self.connections[c->place] = last;
    last->place = c->place;
    close(c->fd);
    free(c->pending);
    free(c);
}

/* Send at once what there is, let epoll wait for the rest, and free what is closed. */
static void update_changed(void) {
    Connection *closed = NULL;
    while (self.changed) {
        Connection *c = self.changed;
        self.changed = c->next_changed;
        if (!c->is_closed) write_frames(c); /* may mark others, and this one again: is_changed */
        bool has_output = c->sum_size || c->pending_size;
        if (c->is_ending && !has_output && !c->is_shut && !c->is_closed) {
            c->is_shut = true;
            shutdown(c->fd, SHUT_WR);
        }
        if (c->is_closed) { /* is_changed stays set, so that it is in no list twice */
            c->next_changed = closed;
            closed = c;
            continue;
        }
        c->is_changed = false;
        uint32_t events = EPOLLIN | (has_output ? EPOLLOUT : 0);
        if (events != c->events) {
            struct epoll_event event = {.events = events, .data.ptr = c};
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, c->fd, &event);
            c->events = events;
        }
    }
    while (closed) {
        Connection *c = closed;
        closed = c->next_changed;
        free_connection(c);
    }
}

static void set_option(int fd, int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
}

static void accept_connection(void) {
    int fd = accept4(self.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    int seconds = (int)(options.lease_ms / 2000) > 1 ? (int)(options.lease_ms / 2000) : 1;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_SNDBUF, SEND_BYTES);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
               options.lease_ms > 1000 ? (int)options.lease_ms : 1000);
    if (self.connection_count > (size_t)options.max_connections + 16) { /* those told so, ending */
        close(fd);
        return;
    }
    Connection *c = checked(calloc(1, sizeof *c));
    c->fd = fd;
    c->since_s = now();
    c->events = EPOLLIN;
    expect_header(c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event);
    c->place = self.connection_count;
    self.connections[self.connection_count++] = c;
    if (self.connection_count > (size_t)options.max_connections)
        end(c, FULL, "the switch has no free connection");
}

static void expire_all(void) {
    double time_s = now();
    for (size_t i = 0; i < self.job_count; i++)
        if (self.jobs[i].slot && time_s - self.jobs[i].progress_s > (double)options.lease_ms / 1000)
            expire(&self.jobs[i]);
    for (size_t i = 0; i < self.connection_count; i++) {
        Connection *c = self.connections[i];
        if (!c->job && time_s - c->since_s > GREETING_S) close_connection(c);
    }
    if (options.parent && getppid() != (pid_t)options.parent) exit(0);
}

static void serve(void) {
    double next_s = 0, step_s = (double)options.lease_ms / 8000;
    if (step_s > 1) step_s = 1;
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(self.epoll, events, EVENTS, (int)(step_s * 1000) + 1);
        for (int i = 0; i < count; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                accept_connection();
                continue;
            }
            if (c->is_closed) continue;
            mark_changed(c);
            if (events[i].events & EPOLLIN)
                read_frames(c);
            else if (events[i].events & (EPOLLERR | EPOLLHUP))
                close_connection(c);
        }
        update_changed();
        if (now() >= next_s) {
            next_s = now() + step_s;
            expire_all();
            update_changed();
        }
    }
}

static int64_t *option_named(const char *name) {
    const struct {
        const char *name;
        int64_t *value;
    } all[] = {{"--port", &options.port}, {"--slots", &options.slots},
               {"--chunk-bytes", &options.chunk_bytes}, {"--window", &options.window},
               {"--max-ranks", &options.max_ranks}, {"--max-jobs", &options.max_jobs},
               {"--max-connections", &options.max_connections}, {"--lease-ms", &options.lease_ms},
               {"--fence", &options.fence}, {"--parent", &options.parent}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, all[i].name)) return all[i].value;
    return NULL;
}

static void read_options(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        int64_t *value = option_named(words[i]);
        if (value)
            *value = strtoll(words[i + 1], NULL, 10);
        else if (!strcmp(words[i], "--host"))
            options.host = words[i + 1];
        else {
            fprintf(stderr, "switch: unknown option %s\n", words[i]);
            exit(2);
        }
    }
    if (options.slots < 1 || options.window < 1 || options.max_ranks < 1 || options.max_jobs < 1 ||
        options.max_connections < 2 || options.chunk_bytes < 4 || options.chunk_bytes % 4 ||
        options.lease_ms < 10 || options.fence < 0) {
        fprintf(stderr, "switch: an option is out of range\n");
        exit(2);
    }
    self.fence = (uint64_t)options.fence;
    const char *token = getenv("PRESAGE_SWITCH_TOKEN_SHA256");
    for (int i = 0; token && strlen(token) == 2 * TOKEN_BYTES && i < TOKEN_BYTES; i++)
        sscanf(token + 2 * (ptrdiff_t)i, "%2hhx", &self.token[i]);
}

static int listen_at(const char *host, int64_t port) {
    char service[16];
    snprintf(service, sizeof service, "%" PRId64, port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int status = getaddrinfo(host, service, &hints, &found);
    if (status) {
        fprintf(stderr, "switch: %s: %s\n", host, gai_strerror(status));
        exit(1);
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, BACKLOG)) {
        fprintf(stderr, "switch: %s port %" PRId64 ": %s\n", host, port, strerror(errno));
        exit(1);
    }
    freeaddrinfo(found);
    return fd;
}

static int port_of(int fd) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &size);
    if (address.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

int main(int count, char **words) {
    read_options(count, words);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getrandom(&self.instance, sizeof self.instance, 0) < 0) self.instance = (uint64_t)getpid();
    self.slots = checked(calloc((size_t)options.slots, sizeof *self.slots));
    self.jobs = checked(calloc((size_t)options.max_jobs, sizeof *self.jobs));
    size_t most = (size_t)options.max_connections + 32;
    self.connections = checked(calloc(most, sizeof(Connection *)));
    self.listener = listen_at(options.host, options.port);
    self.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.listener, &event);
    printf("listening %d\n", port_of(self.listener));
    fflush(stdout);
    serve();
}
