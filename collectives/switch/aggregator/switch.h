/* Software aggregator that stands in for a switch that sums AllReduces: types and functions.
 *
 * It speaks the protocol that presage/collectives/switch/protocol.py describes and takes the
 * options of options.py as pairs "--name value"; the SHA-256 of its token is in the environment
 * variable PRESAGE_SWITCH_TOKEN_SHA256. It prints "listening PORT" and serves until it is killed.
 * The pure-Python aggregator has the same parts; tests hold both to one contract.
 *
 * One thread, level-triggered epoll. Memory is bounded: a slot has (window * (ranks + 1)) chunks; a
 * connection has its state, at most PENDING_LIMIT bytes of answers, and the rest of one chunk.
 * Functions never free a connection: they mark it, and the event loop frees it at the end of a
 * turn, so that pointers stay valid during a turn.
 */
#ifndef PRESAGE_SWITCH_H
#define PRESAGE_SWITCH_H

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

enum { MAGIC = 0x434E4950, VERSION = 1, HEADER_BYTES = 32, MAX_REQUEST = 256, TOKEN_BYTES = 32 };
enum { MAX_NAME = 64, FLOOR_BYTES = 9, MAX_REASON = 200, PENDING_LIMIT = 1 << 20, SEND_BYTES = 256 << 10 };
enum { SPARE_FILES = 64, SPARE_CONNECTIONS = 16 }; /* the latter get REFUSED */
enum { HELLO_BYTES = 8 + 2 * TOKEN_BYTES, EVENTS = 256, READS = 8, BACKLOG = 1024 };
#define NO_NUMBER UINT64_MAX
#define MAX_NUMBER ((uint64_t)INT64_MAX)
#define GREETING_S 5.0
#define PRINTF(text, words) __attribute__((format(printf, text, words)))

enum Kind {
    HELLO = 1, WELCOME, BEGIN, CHUNK, SUM, REFUSED, CANCEL, STATS, STATISTICS, FENCE, FENCED,
    GREET, STARTED, ADMISSION, ADMITTED
};
enum Code {
    NO_SLOT = 1, OLD_EPOCH, OLD_NUMBER, UNEQUAL, RANK_LOST, CANCELLED, BAD_TOKEN, NAME_IN_USE, FULL,
    BAD_REQUEST, SUPERSEDED, NOT_ADMITTED, OLD_ADMISSION, NOT_CONTROLLED, CODES
};
extern const char *const CODE_NAMES[CODES];

typedef struct {
    uint32_t magic;
    uint8_t version, kind;
    uint16_t code;
    uint32_t size, chunk;
    uint64_t number, epoch;
} Header;
_Static_assert(sizeof(Header) == HEADER_BYTES, "the header has no padding");

typedef struct { /* chunks of a job: inputs by rank and place, then sums by place */
    uint8_t *memory;
    size_t capacity;
    bool is_used;
} Slot;

typedef struct { /* admitted job, and the oldest epoch that is accepted of it */
    char name[MAX_NAME + 1];
    uint64_t epoch;
} Floor;

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
    bool is_ending, is_shut, is_closed, is_changed, is_controller;
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
    uint8_t *admission; /* payload of an ADMISSION that is being received */
    /* Output: the rest of a SUM frame, then answers that are pending, then further sums. */
    uint8_t *pending;
    size_t pending_size, pending_capacity;
    Header sum_header;
    uint8_t *sum_payload;
    size_t sum_size, sum_done; /* of header and payload; size 0 if there is none */
};

typedef struct {
    const char *host;
    int64_t port, slots, chunk_bytes, window, max_ranks, max_jobs, max_connections, lease_ms, fence,
        parent, controlled, incarnation;
} Options;
extern Options options;

typedef struct {
    uint8_t token[TOKEN_BYTES];
    uint64_t instance, fence, registrations;
    uint64_t incarnation, admission; /* the latter is the token of the admission in force */
    bool is_admitted;                /* whether there is one */
    Floor *floors;                   /* by name */
    size_t floor_count;
    int epoll, listener;
    Slot *slots;
    Job *jobs;
    size_t job_count;
    Connection **connections;
    size_t connection_count;
    Connection *changed; /* those that may have something to send, or are closed */
    uint64_t bytes_in, bytes_out, sums, completed, refusals[CODES];
} Switch;
extern Switch self;

/* main.c: event loop, options and start of the aggregator */
double now(void);
void *checked(void *memory);

/* frames.c: frames in and out of a connection */
void mark_changed(Connection *c);
void send_frame(Connection *c, Header header, const void *payload, size_t size);
void send_refused(Connection *c, enum Code code, uint64_t number, const char *reason);
void expect_header(Connection *c);
void close_connection(Connection *c);
void read_frames(Connection *c);
void write_frames(Connection *c);

/* jobs.c: AllReduces of the jobs: which is summed, refused or over */
size_t chunk_size(uint64_t values, uint32_t index);
uint8_t *input_memory(const Job *job, uint32_t rank, uint32_t index);
void end_connection(Connection *c, enum Code code, const char *reason);
PRINTF(3, 4) void end_with(Connection *c, enum Code code, const char *format, ...);
bool is_registered(const Job *job);
void leave(Connection *c, const char *why);
void begin_number(Connection *c, const Header *header, uint64_t values);
void chunk_received(Connection *c);
bool next_sum(Connection *c);
void sum_sent(Connection *c);
void expire(Job *job);
void cancel_number(Connection *c, uint64_t number);
void evict(Job *job);

/* admission.c: the controller, and the jobs that it admits */
const Floor *floor_of(const char *job);
void greet(Connection *c, const Header *header);
void expect_admission(Connection *c);
void serve_admission(Connection *c, const Header *header);

/* requests.c: registration, statistics, fence; the others go to the job or the controller */
bool is_equal(const uint8_t *a, const uint8_t *b);
bool is_name(const char *name, size_t size);
void serve_request(Connection *c, const Header *header);

#endif
