/* Reader of a rank's table of decisions in C; layout.py describes the table.
 *
 *     presage_inc_table table;
 *     if (!presage_inc_open(&table, path)) ...             errno says why
 *     int decision = presage_inc_is_allowed(&table, presage_inc_next_number(&table));
 *     presage_inc_close(&table);
 *
 * A reader copies the table when its owner has changed it. It belongs to one thread at a time.
 */
#ifndef PRESAGE_INC_TABLE_H
#define PRESAGE_INC_TABLE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tables of decisions need a little-endian processor"
#endif

enum { PRESAGE_INC_RING = 0, PRESAGE_INC_SWITCH = 1, PRESAGE_INC_UNAVAILABLE = -1 };
enum { PRESAGE_INC_MAGIC = 0x544E4950, PRESAGE_INC_VERSION = 1, PRESAGE_INC_OPEN = 1 };
enum { PRESAGE_INC_SPINS = 100, PRESAGE_INC_TRIES = 2000 }; /* 0.2 s */

typedef struct {
    uint32_t magic, version;
    uint64_t sequence, epoch, first_number;
    uint32_t length, state, checksum, capacity;
    uint64_t next_number, reserved;
    uint8_t decisions[];
} presage_inc_memory;

typedef struct {
    const presage_inc_memory *memory; /* of the owner */
    presage_inc_memory *copy;         /* last one that was valid, and memory for the next one */
    presage_inc_memory *spare;
    size_t size;
    uint64_t sequence; /* of the copy; 1 before the first */
} presage_inc_table;

static inline uint32_t presage_inc_checksum(uint32_t sum, const uint8_t *bytes, size_t size) {
    sum = ~sum;
    for (size_t i = 0; i < size; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (0xEDB88320u & (0u - (sum & 1)));
    }
    return ~sum;
}

static inline void presage_inc_close(presage_inc_table *table) {
    if (table->memory) munmap((void *)(uintptr_t)table->memory, table->size);
    free(table->copy);
    free(table->spare);
    memset(table, 0, sizeof *table);
}

/* Open a table of this user; false with errno if there is none or it is invalid. */
static inline bool presage_inc_open(presage_inc_table *table, const char *path) {
    struct stat found;
    presage_inc_memory *memory = MAP_FAILED;
    memset(table, 0, sizeof *table);
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return false;
    if (fstat(file, &found)) {
        close(file);
        return false;
    }
    bool is_ours = S_ISREG(found.st_mode) && (found.st_uid == geteuid() || found.st_uid == 0) &&
                   !(found.st_mode & 022);
    size_t size = (size_t)found.st_size;
    if (is_ours && size >= sizeof *memory) memory = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (!is_ours) errno = EPERM;
    if (memory == MAP_FAILED) {
        if (is_ours && size < sizeof *memory) errno = EINVAL;
        return false;
    }
    table->memory = memory;
    table->size = size;
    table->sequence = 1;
    table->copy = malloc(size);
    table->spare = malloc(size);
    if (!table->copy || !table->spare) {
        presage_inc_close(table);
        errno = ENOMEM;
        return false;
    }
    if (memory->magic != PRESAGE_INC_MAGIC || memory->version != PRESAGE_INC_VERSION ||
        size != sizeof *memory + memory->capacity) {
        presage_inc_close(table);
        errno = EINVAL;
        return false;
    }
    return true;
}

/* Copy the table once; false if it is being written. */
static inline bool presage_inc_copy(presage_inc_table *table) {
    uint64_t before = __atomic_load_n(&table->memory->sequence, __ATOMIC_ACQUIRE);
    if (before & 1) return false;
    presage_inc_memory *copy = table->spare;
    size_t capacity = table->size - sizeof *copy;
    memcpy(copy, table->memory, table->size);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&table->memory->sequence, __ATOMIC_RELAXED) != before) return false;
    if (copy->length > capacity) return false;
    uint32_t sum = presage_inc_checksum(0, (const uint8_t *)&copy->epoch, 24);
    if (presage_inc_checksum(sum, copy->decisions, copy->length) != copy->checksum) return false;
    table->spare = table->copy;
    table->copy = copy;
    table->sequence = before;
    return true;
}

static inline bool presage_inc_refresh(presage_inc_table *table) {
    for (int i = 0; i < PRESAGE_INC_TRIES; i++) {
        if (presage_inc_copy(table)) return true;
        if (i > PRESAGE_INC_SPINS) nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    table->sequence = 1; /* the owner has died while it wrote, or is stopped */
    return false;
}

/* Return the number of the AllReduce that the rank starts next. */
static inline uint64_t presage_inc_next_number(const presage_inc_table *table) {
    return __atomic_load_n(&table->memory->next_number, __ATOMIC_ACQUIRE);
}

/* Return PRESAGE_INC_SWITCH, PRESAGE_INC_RING, or PRESAGE_INC_UNAVAILABLE if the owner has closed
 * the table or died while it wrote. */
static inline int presage_inc_is_allowed(presage_inc_table *table, uint64_t number) {
    uint64_t sequence = __atomic_load_n(&table->memory->sequence, __ATOMIC_ACQUIRE);
    if (sequence != table->sequence && !presage_inc_refresh(table)) return PRESAGE_INC_UNAVAILABLE;
    const presage_inc_memory *copy = table->copy;
    if (copy->state != PRESAGE_INC_OPEN) return PRESAGE_INC_UNAVAILABLE;
    uint64_t index = number - copy->first_number;
    bool is_inside = number >= copy->first_number && index < copy->length;
    return is_inside && (copy->decisions[index] & 1) ? PRESAGE_INC_SWITCH : PRESAGE_INC_RING;
}

#endif
