/* In-band agreement of two jobs of two ranks on one switch with one slot, in two AllReduces each.
 *
 * Job 0 has the switch in epoch 1, loses it in epoch 2; job 1 is granted it in epoch 3. A message is
 * a flag that its receiver may take at any later time, so messages are reordered. EARLY waits may
 * time out at any time, and every wait when nothing else can happen. The controller may crash at
 * any moment. Asserted: laws 1, 2 and 6 of the
 * explorer; the claim `finishes`: laws 3, 4 and 5.
 */
#define NUMBERS 2
#define NONE 255

#define ALLOWED(job, epoch) ((job == 0 && epoch == 1) || (job == 1 && epoch == 3))
#define AT(rank, n) ((rank) * NUMBERS + (n))
#define MIN(a, b) ((a) < (b) -> (a) : (b))

mtype = { unknown, idle, ring, inc, voting };

/* Ranks 0 and 1 are of job 0, 2 and 3 of job 1. */
mtype phase[4] = idle;
byte number[4];
byte agreed[4] = 1;
byte newest[4] = 1;
byte contributed[4];
byte view_sent[4] = 1;           /* newest view that the controller has sent */
byte data_sent[8];               /* by rank and number: epoch of a contribution under way */
byte data_newest[8];
byte result_sent[8];             /* by rank and number: smallest epoch of a result */
bool refusal_sent[8];
bool promised[8];                /* by rank and number: voted without a result */
byte switch_epoch[8];            /* by rank and number: ended by the switch, with this epoch */
byte ring_epoch[4];              /* by job and number: smallest epoch of a ring */
mtype began[4] = unknown;        /* by job and number */
mtype ended[4] = unknown;

byte holder = NONE;              /* job that has the slot */
byte holder_number;
bool holder_has[2];
byte floor_of[2];
byte closed[2];                  /* numbers below this one have ended at the switch */
bool fence_sent, fence_confirmed;

/* Law 1. */
#define RECORD(table, job, n, way) \
    assert(table[AT(job, n)] == unknown || table[AT(job, n)] == way); table[AT(job, n)] = way

#ifndef EARLY
#define EARLY 1
#endif
byte early = EARLY;
#define TIME_OUT (early > 0 || timeout)

inline spend() {
    if
    :: early > 0 -> early--
    :: else
    fi
}

inline complete(i, epoch) {
    if
    :: epoch > agreed[i] -> agreed[i] = epoch
    :: else
    fi;
    contributed[i] = 0;
    result_sent[AT(i, number[i])] = 0;
    refusal_sent[AT(i, number[i])] = false;
    number[i]++;
    phase[i] = idle
}

inline promise(i) {
    promised[AT(i, number[i])] = true;
    phase[i] = voting
}

proctype Rank(byte job; byte me) {
    byte i = job * 2 + me;
    byte peer = job * 2 + 1 - me;
    do
    :: atomic { number[i] == NUMBERS -> break }
    :: atomic { phase[i] == idle && number[i] < NUMBERS && ALLOWED(job, agreed[i]) ->
        RECORD(began, job, number[i], inc);
        contributed[i] = newest[i];
        phase[i] = inc;
        data_newest[AT(i, number[i])] = newest[i];
        data_sent[AT(i, number[i])] = agreed[i] }
    :: atomic { phase[i] == idle && number[i] < NUMBERS && !ALLOWED(job, agreed[i]) ->
        RECORD(began, job, number[i], ring);
        RECORD(ended, job, number[i], ring);
        contributed[i] = newest[i];
        phase[i] = ring }
    :: atomic { view_sent[i] > newest[i] -> newest[i] = view_sent[i] }
    :: atomic { phase[i] == inc && result_sent[AT(i, number[i])] ->
        RECORD(ended, job, number[i], inc);
        switch_epoch[AT(i, number[i])] = result_sent[AT(i, number[i])];
        complete(i, result_sent[AT(i, number[i])]) }
    :: atomic { phase[i] == inc && (refusal_sent[AT(i, number[i])] ||
        promised[AT(peer, number[i])]) -> promise(i) }
    :: atomic { phase[i] == inc && TIME_OUT -> spend(); promise(i) }
    :: atomic { phase[i] == voting && switch_epoch[AT(peer, number[i])] -> /* the peer's answer */
        RECORD(ended, job, number[i], inc);
        switch_epoch[AT(i, number[i])] = switch_epoch[AT(peer, number[i])];
        complete(i, switch_epoch[AT(peer, number[i])]) }
    :: atomic { phase[i] == voting && promised[AT(peer, number[i])] ->
        RECORD(ended, job, number[i], ring);
        phase[i] = ring }
    :: atomic { phase[i] == ring && ring_epoch[AT(job, number[i])] ->
        complete(i, ring_epoch[AT(job, number[i])]) }
    :: atomic { phase[i] == ring && phase[peer] == ring && number[peer] == number[i] &&
        !ring_epoch[AT(job, number[i])] ->
        ring_epoch[AT(job, number[i])] = MIN(contributed[i], contributed[peer]);
        complete(i, ring_epoch[AT(job, number[i])]) }
    od
}

inline close(job, n) {
    if
    :: closed[job] < n + 1 -> closed[job] = n + 1
    :: else
    fi
}

inline evict() {
    close(holder, holder_number);
    holder = NONE;
    holder_has[0] = false;
    holder_has[1] = false
}

inline take(i, n) {
    d_step {
        job = i / 2;
        if
        :: data_sent[AT(i, n)] < floor_of[job] || n < closed[job] -> refusal_sent[AT(i, n)] = true
        :: else ->
            assert(holder == NONE || holder == job); /* laws 2 and 6 */
            if
            :: holder == job && holder_number > n -> refusal_sent[AT(i, n)] = true
            :: else ->
                if
                :: holder == job && holder_number < n -> evict()
                :: else
                fi;
                holder = job;
                holder_number = n;
                holder_has[i % 2] = true;
                if
                :: holder_has[0] && holder_has[1] ->
                    least = MIN(data_newest[AT(2 * job, n)], data_newest[AT(2 * job + 1, n)]);
                    result_sent[AT(2 * job, n)] = least;
                    result_sent[AT(2 * job + 1, n)] = least;
                    evict()
                :: else
                fi
            fi
        fi;
        data_sent[AT(i, n)] = 0;
        data_newest[AT(i, n)] = 0
    }
}

proctype Switch() {
    byte job, least;
end:
    do
    :: data_sent[0] -> take(0, 0)
    :: data_sent[1] -> take(0, 1)
    :: data_sent[2] -> take(1, 0)
    :: data_sent[3] -> take(1, 1)
    :: data_sent[4] -> take(2, 0)
    :: data_sent[5] -> take(2, 1)
    :: data_sent[6] -> take(3, 0)
    :: data_sent[7] -> take(3, 1)
    :: atomic { holder != NONE && TIME_OUT -> spend(); evict() } /* the lease ends */
    :: d_step { fence_sent && !fence_confirmed ->
        floor_of[0] = 2;
        if
        :: holder == 0 -> evict()
        :: else
        fi;
        fence_confirmed = true }
    od
}

proctype Controller() {
    view_sent[0] = 2;
    view_sent[1] = 2;
    if
    :: agreed[0] >= 2 || agreed[1] >= 2 /* adopted */
    :: atomic { TIME_OUT -> spend() }
    :: goto crashed
    fi;
#ifndef NO_FENCE
    fence_sent = true;
    if
    :: fence_confirmed
    :: goto crashed
    fi;
#endif
    view_sent[2] = 3;
    view_sent[3] = 3;
crashed:
    skip
}

init {
    atomic {
        run Rank(0, 0);
        run Rank(0, 1);
        run Rank(1, 0);
        run Rank(1, 1);
        run Switch();
        run Controller()
    }
}

ltl finishes {
    <> (number[0] == NUMBERS && number[1] == NUMBERS &&
        number[2] == NUMBERS && number[3] == NUMBERS)
}
