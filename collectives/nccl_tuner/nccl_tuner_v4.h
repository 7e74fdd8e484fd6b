/* What a tuner plugin needs of NCCL's tuner interface, version 4: written from
 * the description in its ext-tuner/README.md, so that this package needs no header of NCCL. */
#ifndef PRESAGE_NCCL_TUNER_V4_H
#define PRESAGE_NCCL_TUNER_V4_H

#include <stddef.h>

enum { TUNER_SUCCESS = 0, TUNER_INTERNAL_ERROR = 3 };                /* of ncclResult_t */
enum { TUNER_ALL_REDUCE = 4 };                                       /* of ncclFunc_t */
enum { TUNER_COLLNET_DIRECT = 2, TUNER_COLLNET_CHAIN, TUNER_NVLS };  /* rows of the cost table */
enum { TUNER_LOG_WARN = 2, TUNER_LOG_INFO = 3, TUNER_SUBSYSTEM = 64 };
#define TUNER_IGNORE (-1.0f) /* cost of what cannot be chosen */

typedef void (*tuner_log)(int level, unsigned long flags, const char *file, int line,
                          const char *format, ...);

typedef struct {
    const char *name;
    int (*init)(size_t ranks, size_t nodes, tuner_log log, void **context);
    /* costs: array of algorithms x protocols, although its type says otherwise */
    int (*get_coll_info)(void *context, int function, size_t bytes, int operations, float **costs,
                         int algorithms, int protocols, int is_registered, int *channels);
    int (*destroy)(void *context);
} tuner_v4;

#endif
