/* A wall clock that tests move, by LD_PRELOAD: seconds that stand in the file MOVED_CLOCK, 8 bytes, are added to it.
 *
 * The monotonic clock stays as it is, so that timeouts stay true. CLOCK_BOOTTIME does, too, unless MOVED_CLOCK_SLEEPS is
 * set: then a step is a sleep of the machine. Debian's libfaketime has no such choice, and leaves shared memory behind
 * when a process is killed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static volatile const int64_t *moved_by;
static int sleeps;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MOVED_CLOCK");
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    sleeps = getenv("MOVED_CLOCK_SLEEPS") != NULL;
    if (path) {
        int descriptor = open(path, O_RDONLY | O_CLOEXEC);
        void *found = mmap(NULL, sizeof *moved_by, PROT_READ, MAP_SHARED, descriptor, 0);
        if (found == MAP_FAILED) abort();
        close(descriptor);
        moved_by = found;
    }
}

int clock_gettime(clockid_t which, struct timespec *out) {
    if (!real_clock_gettime) begin(); /* other libraries' constructors may be first */
    int result = real_clock_gettime(which, out);
    int is_moved = which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE || (which == CLOCK_BOOTTIME && sleeps);
    if (result == 0 && is_moved && moved_by) out->tv_sec += *moved_by;
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
