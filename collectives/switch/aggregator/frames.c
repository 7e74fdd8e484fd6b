/* Frames in and out of a connection. */
#include "switch.h"

void mark_changed(Connection *c) {
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

void send_frame(Connection *c, Header header, const void *payload, size_t size) {
    header.magic = MAGIC;
    header.version = VERSION;
    header.size = (uint32_t)size;
    put_bytes(c, &header, sizeof header, false);
    put_bytes(c, payload, size, false);
}

/* Send REFUSED. For a rank that takes part in no AllReduce any more, complete the frames under way
 * without the memory of a slot. */
void send_refused(Connection *c, enum Code code, uint64_t number, const char *reason) {
    if (c->sum_size && !c->is_active) { /* its rest goes in front */
        size_t head = c->sum_done < HEADER_BYTES ? HEADER_BYTES - c->sum_done : 0;
        size_t body = c->sum_size - c->sum_done - head;
        put_bytes(c, c->sum_payload + (c->sum_size - HEADER_BYTES - body), body, true);
        put_bytes(c, (uint8_t *)&c->sum_header + (HEADER_BYTES - head), head, true);
        c->sum_size = 0;
    }
    if (c->is_chunk && !c->is_active) {
        c->is_chunk = false;
        c->target = NULL;
    }
    self.refusals[code]++;
    Header header = {.kind = REFUSED, .code = (uint16_t)code, .number = number};
    send_frame(c, header, reason, strnlen(reason, MAX_REASON));
}

void expect_header(Connection *c) {
    c->in_payload = c->is_chunk = false;
    c->target = (uint8_t *)&c->header;
    c->left = HEADER_BYTES;
}

/* Choose where the payload of a chunk goes: memory of the slot, or nowhere if it is too late. */
static void expect_chunk(Connection *c) {
    const Header *header = &c->header;
    Job *job = c->job;
    if (!job) {
        end_connection(c, BAD_REQUEST, "chunk before a registration");
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
    if (header->chunk != c->received || header->chunk >= c->chunks ||
        header->chunk >= (uint64_t)c->sent + (uint64_t)options.window)
        end_with(c, BAD_REQUEST, "chunk %" PRIu32 " is not the next one or exceeds the window",
                 header->chunk);
    else if (header->size != chunk_size(c->values, header->chunk) ||
             header->epoch != job->running_epoch)
        end_with(c, BAD_REQUEST, "chunk %" PRIu32 " has another size or epoch than announced",
                 header->chunk);
    else {
        c->target = input_memory(job, c->rank, header->chunk);
        c->is_chunk = true;
    }
}

static void take_header(Connection *c) {
    if (c->header.magic != MAGIC) {
        end_connection(c, BAD_REQUEST, "not a frame of this protocol");
    } else if (c->header.version != VERSION) {
        end_with(c, BAD_REQUEST, "version %d of the protocol; this is version %d",
                 c->header.version, VERSION);
    } else {
        c->in_payload = true;
        c->left = c->header.size;
        if (c->header.kind == CHUNK)
            expect_chunk(c);
        else if (c->header.kind == ADMISSION)
            expect_admission(c);
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
    if (header.kind == ADMISSION)
        serve_admission(c, &header);
    else if (header.kind != CHUNK)
        serve_request(c, &header);
    else if (is_chunk)
        chunk_received(c);
}

void close_connection(Connection *c) {
    c->is_closed = true;
    leave(c, "connection closed");
    mark_changed(c);
}

void read_frames(Connection *c) {
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

/* Send until the socket takes no more. */
void write_frames(Connection *c) {
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
