/* Calls of the C library on files below a folder that fail when told to. Loaded by LD_PRELOAD; tests/faults/faulty_io.py
 * builds it and drives it through a file that both have mapped.
 *
 * It can also keep the shadow of each file: what would be on the disk if the power failed now. A page of 4 KiB gets there
 * when the file is synced. A sync that fails forgets the pages, as Linux does: they stay in memory, count as clean, and
 * never reach the disk unless they are written again. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, OPEN = 8, READ = 16, RENAME = 32 };
enum { PAGE = 4096 };

struct control {
    int error;       /* errno of the calls that fail; 0: none fails */
    int operations;  /* which calls */
    int passes;      /* so many matching calls pass first */
    int failures;    /* so many fail then; -1: all */
    int dies;        /* the process ends instead, as by kill -9 */
    int hits;        /* so many have failed so far */
    char name[100];  /* only files whose path has this in it */
};

struct dirty {
    char path[PATH_MAX];
    unsigned char *pages;
    size_t count;
    struct dirty *next;
};

static struct control *control;
static const char *folder, *shadow;
static struct dirty *all_dirty;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTY_IO_CONTROL");
    folder = getenv("FAULTY_IO_FOLDER");
    shadow = getenv("FAULTY_IO_SHADOW");
    int fd = path && folder ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (mapped != MAP_FAILED)
        control = mapped;
}

static int is_below(const char *path) {
    size_t length = control ? strlen(folder) : 0;
    return control && !strncmp(path, folder, length) && (path[length] == '/' || path[length] == 0);
}

/* The path of an open file, if it lies below the folder. */
static int path_of(int fd, char *path) {
    char link[64];
    if (!control)
        return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = before;
    if (length <= 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

static int absolute(int at, const char *name, char *path) {
    char base[PATH_MAX] = "";
    if (!control)
        return 0;
    if (name[0] != '/') {
        char link[64];
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length <= 0)
            return 0;
        base[length] = 0;
    }
    if (snprintf(path, PATH_MAX, "%s%s%s", base, base[0] ? "/" : "", name) >= PATH_MAX)
        return 0;
    return is_below(path);
}

/* Whether a call fails now; errno says how. */
static int fails(int operation, const char *path) {
    if (!control->error || !(control->operations & operation) || !strstr(path, control->name))
        return 0;
    if (__atomic_fetch_sub(&control->passes, 1, __ATOMIC_SEQ_CST) > 0)
        return 0;
    if (control->failures >= 0 && __atomic_load_n(&control->hits, __ATOMIC_SEQ_CST) >= control->failures)
        return 0;
    __atomic_fetch_add(&control->hits, 1, __ATOMIC_SEQ_CST);
    if (control->dies)
        _exit(137);
    errno = control->error;
    return 1;
}

/* The shadow */

static struct dirty *dirty_of(const char *path) {
    struct dirty *found = all_dirty;
    while (found && strcmp(found->path, path))
        found = found->next;
    if (!found && (found = calloc(1, sizeof *found))) {
        strcpy(found->path, path);
        found->next = all_dirty;
        all_dirty = found;
    }
    return found;
}

static void wrote(int fd, off_t at, ssize_t length) {
    char path[PATH_MAX];
    if (!shadow || length <= 0 || !path_of(fd, path))
        return;
    pthread_mutex_lock(&turn);
    struct dirty *dirty = dirty_of(path);
    size_t end = (at + length + PAGE - 1) / PAGE;
    if (end > dirty->count) {
        dirty->pages = realloc(dirty->pages, end);
        memset(dirty->pages + dirty->count, 0, end - dirty->count);
        dirty->count = end;
    }
    memset(dirty->pages + at / PAGE, 1, end - at / PAGE);
    pthread_mutex_unlock(&turn);
}

static int shadow_of(const char *path, char *other) {
    return snprintf(other, PATH_MAX, "%s%s", shadow, path + strlen(folder)) < PATH_MAX;
}

static void synced(int fd, const char *path, int is_on_disk) {
    char other[PATH_MAX], page[PAGE];
    struct stat status;
    if (!shadow || fstat(fd, &status) || !S_ISREG(status.st_mode) || !shadow_of(path, other))
        return;
    pthread_mutex_lock(&turn);
    struct dirty *dirty = dirty_of(path);
    int from = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    int to = is_on_disk ? REAL(open)(other, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    for (size_t n = 0; to >= 0 && n < dirty->count; n++) {
        if (!dirty->pages[n])
            continue;
        ssize_t got = REAL(pread64)(from, page, PAGE, (off_t)n * PAGE);
        if (got > 0 && REAL(pwrite64)(to, page, got, (off_t)n * PAGE) != got)
            abort();
    }
    if (to >= 0 && ftruncate64(to, status.st_size))
        abort();
    if (dirty->count)
        memset(dirty->pages, 0, dirty->count);
    close(from);
    if (to >= 0)
        close(to);
    pthread_mutex_unlock(&turn);
}

/* The calls */

ssize_t write(int fd, const void *data, size_t length) {
    char path[PATH_MAX];
    off_t at = shadow ? lseek(fd, 0, SEEK_CUR) : 0;
    if (path_of(fd, path) && fails(WRITE, path))
        return -1;
    ssize_t done = REAL(write)(fd, data, length);
    wrote(fd, at < 0 ? 0 : at, at < 0 ? 0 : done);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    return path_of(fd, path) && fails(WRITE, path) ? -1 : REAL(writev)(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) {
    char path[PATH_MAX];
    if (path_of(fd, path) && fails(WRITE, path))
        return -1;
    ssize_t done = REAL(pwrite64)(fd, data, length, at);
    wrote(fd, at, done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t at) {
    return pwrite64(fd, data, length, at);
}

ssize_t read(int fd, void *data, size_t length) {
    char path[PATH_MAX];
    return path_of(fd, path) && fails(READ, path) ? -1 : REAL(read)(fd, data, length);
}

ssize_t pread64(int fd, void *data, size_t length, off64_t at) {
    char path[PATH_MAX];
    return path_of(fd, path) && fails(READ, path) ? -1 : REAL(pread64)(fd, data, length, at);
}

ssize_t pread(int fd, void *data, size_t length, off_t at) {
    return pread64(fd, data, length, at);
}

static int sync_one(int fd, int (*call)(int)) {
    char path[PATH_MAX];
    if (!path_of(fd, path))
        return call(fd);
    int failed = fails(SYNC, path);
    int before = errno;
    int result = failed ? -1 : call(fd);
    synced(fd, path, result == 0);
    if (failed)
        errno = before;
    return result;
}

int fsync(int fd) {
    return sync_one(fd, REAL(fsync));
}

int fdatasync(int fd) {
    return sync_one(fd, REAL(fdatasync));
}

int ftruncate64(int fd, off64_t length) {
    char path[PATH_MAX];
    return path_of(fd, path) && fails(TRUNCATE, path) ? -1 : REAL(ftruncate64)(fd, length);
}

int ftruncate(int fd, off_t length) {
    return ftruncate64(fd, length);
}

static int opens(int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && absolute(at, name, path) && fails(OPEN, path))
        return -1;
    return REAL(openat64)(at, name, flags, mode);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *name, int flags, ...) {
    MODE(flags)
    return opens(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...) {
    MODE(flags)
    return opens(AT_FDCWD, name, flags, mode);
}

int openat(int at, const char *name, int flags, ...) {
    MODE(flags)
    return opens(at, name, flags, mode);
}

int openat64(int at, const char *name, int flags, ...) {
    MODE(flags)
    return opens(at, name, flags, mode);
}

int rename(const char *from, const char *to) {
    char path[PATH_MAX], other[PATH_MAX], source[PATH_MAX];
    int is_ours = absolute(AT_FDCWD, to, path);
    if (is_ours && fails(RENAME, path))
        return -1;
    int result = REAL(rename)(from, to);
    if (!result && is_ours && shadow && absolute(AT_FDCWD, from, source)) {
        char shadow_source[PATH_MAX];
        if (shadow_of(source, shadow_source) && shadow_of(path, other))
            REAL(rename)(shadow_source, other);
    }
    return result;
}

int unlink(const char *name) {
    char path[PATH_MAX], other[PATH_MAX];
    int result = REAL(unlink)(name);
    if (!result && shadow && absolute(AT_FDCWD, name, path) && shadow_of(path, other))
        REAL(unlink)(other);
    return result;
}
