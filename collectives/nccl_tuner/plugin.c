/* NCCL tuner plugin: an AllReduce uses the switch if and only if the rank's table of decisions
 * allows the number that the rank starts next. The table's path is in $PRESAGE_INC_TABLE.
 *
 * The costs of the algorithms that aggregate in switches become 0 if it is allowed, so that all
 * ranks choose the first of them that the communicator has. Otherwise, and for all other
 * collectives, these algorithms cannot be chosen. Without a table nothing is allowed. */
#define _GNU_SOURCE
#include "nccl_tuner_v4.h"
#include "presage_inc_table.h"

typedef struct {
    presage_inc_table table;
    bool has_table, has_nodes, is_reported;
    tuner_log log;
} tuner;

#define REPORT(self, level, ...)                                                        \
    do {                                                                                \
        if ((self)->log)                                                                \
            (self)->log(level, TUNER_SUBSYSTEM, __FILE__, __LINE__, __VA_ARGS__);       \
    } while (0)

static int init(size_t ranks, size_t nodes, tuner_log log, void **context) {
    tuner *self = calloc(1, sizeof *self);
    (void)ranks;
    if (!self) return TUNER_INTERNAL_ERROR;
    self->log = log;
    self->has_nodes = nodes > 1;
    const char *path = getenv("PRESAGE_INC_TABLE");
    self->has_table = path && presage_inc_open(&self->table, path);
    if (!path)
        REPORT(self, TUNER_LOG_WARN, "presage: PRESAGE_INC_TABLE is not set; no switch is used");
    else if (!self->has_table)
        REPORT(self, TUNER_LOG_WARN, "presage: table %s cannot be opened (%s); no switch is used",
               path, strerror(errno));
    else
        REPORT(self, TUNER_LOG_INFO, "presage: decisions come from table %s", path);
    *context = self;
    return TUNER_SUCCESS;
}

/* Whether an algorithm aggregates in switches: NVLS does so between nodes. */
static bool is_on_switch(const tuner *self, int algorithm) {
    return algorithm == TUNER_COLLNET_DIRECT || algorithm == TUNER_COLLNET_CHAIN ||
           (algorithm == TUNER_NVLS && self->has_nodes);
}

static bool is_allowed(tuner *self, int function) {
    if (function != TUNER_ALL_REDUCE || !self->has_table) return false;
    int decision = presage_inc_is_allowed(&self->table, presage_inc_next_number(&self->table));
    if (decision == PRESAGE_INC_UNAVAILABLE && !self->is_reported) {
        self->is_reported = true;
        REPORT(self, TUNER_LOG_WARN, "presage: the table is closed or damaged; no switch is used");
    }
    return decision == PRESAGE_INC_SWITCH;
}

static bool has_other(const tuner *self, const float *costs, int algorithms, int protocols) {
    for (int i = 0; i < algorithms * protocols; i++)
        if (!is_on_switch(self, i / protocols) && costs[i] >= 0) return true;
    return false;
}

static int get_coll_info(void *context, int function, size_t bytes, int operations, float **table,
                         int algorithms, int protocols, int is_registered, int *channels) {
    (void)bytes, (void)operations, (void)is_registered, (void)channels;
    tuner *self = context;
    float *costs = (float *)(void *)table;
    bool allowed = is_allowed(self, function);
    if (!allowed && !has_other(self, costs, algorithms, protocols)) {
        REPORT(self, TUNER_LOG_WARN, "presage: NCCL can only use the switch, which is not allowed");
        return TUNER_SUCCESS;
    }
    for (int i = 0; i < algorithms * protocols; i++)
        if (is_on_switch(self, i / protocols) && costs[i] >= 0)
            costs[i] = allowed ? 0.0f : TUNER_IGNORE;
    return TUNER_SUCCESS;
}

static int destroy(void *context) {
    tuner *self = context;
    if (self) presage_inc_close(&self->table);
    free(self);
    return TUNER_SUCCESS;
}

__attribute__((visibility("default"))) const tuner_v4 ncclTunerPlugin_v4 = {
    "presage", init, get_coll_info, destroy};
