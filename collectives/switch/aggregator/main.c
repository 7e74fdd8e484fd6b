/* Event loop, options and start of the aggregator. */
#include "switch.h"

const char *const CODE_NAMES[CODES] = {
    "", "no_slot", "old_epoch", "old_number", "unequal", "rank_lost", "cancelled", "bad_token",
    "name_in_use", "full", "bad_request", "superseded", "not_admitted", "old_admission",
    "not_controlled"};

Options options = {"127.0.0.1", 0, 1, 64 << 10, 16, 64, 256, 4096, 5000, 0, 0, 0, 0};
Switch self;

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void *checked(void *memory) {
    if (!memory) {
        fprintf(stderr, "switch: out of memory\n");
        exit(1);
    }
    return memory;
}

static void free_connection(Connection *c) {
    Connection *last = self.connections[--self.connection_count];
    self.connections[c->place] = last;
    last->place = c->place;
    close(c->fd);
    free(c->pending);
    free(c->admission);
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
    if (self.connection_count > (size_t)options.max_connections + SPARE_CONNECTIONS) {
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
        end_connection(c, FULL, "the switch has no free connection");
}

static void expire_all(void) {
    double time_s = now();
    for (size_t i = 0; i < self.job_count; i++)
        if (self.jobs[i].slot && time_s - self.jobs[i].progress_s > (double)options.lease_ms / 1000)
            expire(&self.jobs[i]);
    for (size_t i = 0; i < self.connection_count; i++) {
        Connection *c = self.connections[i];
        if (!c->job && !c->is_controller && time_s - c->since_s > GREETING_S) close_connection(c);
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
               {"--fence", &options.fence}, {"--parent", &options.parent},
               {"--controlled", &options.controlled}, {"--incarnation", &options.incarnation}};
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
        options.lease_ms < 10 || options.fence < 0 || options.incarnation < 0) {
        fprintf(stderr, "switch: an option is out of range\n");
        exit(2);
    }
    self.fence = (uint64_t)options.fence;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    self.incarnation = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    if (options.incarnation) self.incarnation = (uint64_t)options.incarnation;
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

/* Raise the limit of open files; accept no more connections than it allows. */
static void limit_connections(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max != RLIM_INFINITY &&
        (uint64_t)files.rlim_max < (uint64_t)options.max_connections + SPARE_FILES)
        options.max_connections = (int64_t)files.rlim_max - SPARE_FILES;
}

int main(int count, char **words) {
    read_options(count, words);
    signal(SIGPIPE, SIG_IGN);
    limit_connections();
    if (getrandom(&self.instance, sizeof self.instance, 0) < 0) self.instance = (uint64_t)getpid();
    self.slots = checked(calloc((size_t)options.slots, sizeof *self.slots));
    self.jobs = checked(calloc((size_t)options.max_jobs, sizeof *self.jobs));
    size_t most = (size_t)options.max_connections + SPARE_CONNECTIONS + 1;
    self.connections = checked(calloc(most, sizeof(Connection *)));
    self.listener = listen_at(options.host, options.port);
    self.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.listener, &event);
    printf("listening %d\n", port_of(self.listener));
    fflush(stdout);
    serve();
}
