/* Controller of the switch: which jobs it admits, and from which epoch on. */
#include "switch.h"

static int compare_names(const void *name, const void *floor) {
    return strcmp(name, ((const Floor *)floor)->name);
}

/* Return the floor of a job; NULL if it is not admitted. */
const Floor *floor_of(const char *job) {
    if (!self.floor_count) return NULL;
    return bsearch(job, self.floors, self.floor_count, sizeof *self.floors, compare_names);
}

/* Put another admission in force, and end what it excludes. */
static void replace_floors(Floor *floors, size_t count) {
    free(self.floors);
    self.floors = floors;
    self.floor_count = count;
    for (size_t i = 0; i < self.job_count; i++) evict(&self.jobs[i]);
}

/* Answer a controller. A switch whose incarnation is below the one that the controller knows begins
 * a new life with a higher one: no admission in force can come from this controller. */
void greet(Connection *c, const Header *header) {
    if (header->size != TOKEN_BYTES || !is_equal(c->request, self.token)) {
        end_connection(c, BAD_TOKEN, "the token is not the switch's");
        return;
    }
    if (!options.controlled) {
        end_connection(c, NOT_CONTROLLED, "the switch was started without a controller");
        return;
    }
    if (header->epoch >= MAX_NUMBER) {
        end_connection(c, BAD_REQUEST, "the known incarnation is out of range");
        return;
    }
    if (header->epoch > self.incarnation) {
        self.incarnation = header->epoch + 1;
        self.admission = 0;
        self.is_admitted = false;
        replace_floors(NULL, 0);
    }
    c->is_controller = true;
    Header answer = {.kind = STARTED, .number = self.admission, .epoch = self.incarnation};
    send_frame(c, answer, NULL, 0);
}

/* Get memory for the payload of an ADMISSION; only a controller may use more than a request. */
void expect_admission(Connection *c) {
    size_t limit = (size_t)options.max_jobs * (FLOOR_BYTES + MAX_NAME);
    if (!c->is_controller) {
        end_connection(c, BAD_TOKEN, "ADMISSION before GREET with the token of the switch");
    } else if (c->header.size > limit) {
        end_with(c, BAD_REQUEST, "payload of %" PRIu32 " bytes; the limit is %zu", c->header.size,
                 limit);
    } else {
        c->admission = checked(malloc((size_t)c->header.size + 1));
        c->target = c->admission;
    }
}

/* Read the floors of an ADMISSION; return why they are invalid, or NULL. */
static const char *read_floors(const uint8_t *payload, size_t size, Floor *floors, size_t *count) {
    for (size_t place = 0; place < size; ++*count) {
        if (size - place < FLOOR_BYTES) return "ADMISSION is cut off";
        if (*count == (size_t)options.max_jobs) return "ADMISSION has more jobs than the switch";
        Floor *floor = &floors[*count];
        size_t length = payload[place + FLOOR_BYTES - 1];
        memcpy(&floor->epoch, payload + place, sizeof floor->epoch);
        place += FLOOR_BYTES;
        if (length > size - place || !is_name((const char *)payload + place, length) ||
            floor->epoch > MAX_NUMBER)
            return "ADMISSION has an invalid name or epoch";
        memcpy(floor->name, payload + place, length);
        place += length;
        if (*count && strcmp(floor->name, floors[*count - 1].name) <= 0)
            return "the names of ADMISSION do not ascend";
    }
    return NULL;
}

static bool is_in_force(const Floor *floors, size_t count) {
    if (count != self.floor_count) return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(floors[i].name, self.floors[i].name) || floors[i].epoch != self.floors[i].epoch)
            return false;
    return true;
}

/* Return why an admission is outdated, or NULL. */
static const char *outdated(const Header *header, const Floor *floors, size_t count) {
    if (header->epoch != self.incarnation) return "the admission is for another start of the switch";
    if (header->number < self.admission) return "a newer admission is in force";
    if (self.is_admitted && header->number == self.admission && !is_in_force(floors, count))
        return "another admission with this token is in force";
    return NULL;
}

static void admit(Connection *c, const Header *header) {
    Floor *floors = checked(calloc((size_t)options.max_jobs, sizeof *floors));
    size_t count = 0;
    const char *why = read_floors(c->admission, header->size, floors, &count);
    if (why || header->number > MAX_NUMBER) {
        free(floors);
        end_connection(c, BAD_REQUEST, why ? why : "the token is above 2**63 - 1");
    } else if ((why = outdated(header, floors, count))) {
        free(floors);
        send_refused(c, OLD_ADMISSION, NO_NUMBER, why);
    } else {
        self.admission = header->number;
        self.is_admitted = true;
        replace_floors(floors, count);
        Header answer = {.kind = ADMITTED, .number = self.admission, .epoch = self.incarnation};
        send_frame(c, answer, NULL, 0);
    }
}

void serve_admission(Connection *c, const Header *header) {
    if (c->pending_size > PENDING_LIMIT)
        end_connection(c, BAD_REQUEST, "the client does not read what it requests");
    else
        admit(c, header);
    free(c->admission);
    c->admission = NULL;
}
