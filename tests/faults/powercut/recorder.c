/* Records, in order, what a process and its children change below one folder, what they sync, and what they tell others.
 *
 * Loaded by LD_PRELOAD (see recorder.py, which builds it and reads what it writes). RECORDER_ROOT is the folder,
 * without a slash at its end; RECORDER_LOG the file to append to, outside of it. One lock for all processes makes the
 * order of the log the order of the calls: a change and its entry are one step under the lock. What is told to others
 * (sockets, standard output) is logged before it is told; a sync before it begins, and again when it has succeeded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) ({ \
    static __typeof__(&name) found; \
    if (found == NULL) \
        found = (__typeof__(&name))real(#name); \
    found; \
})

enum kind {
    CREATE = 1, MKDIR, WRITE, TRUNCATE, ALLOCATE, SYNC_BEGIN, SYNC_END, RENAME, EXCHANGE, LINK, UNLINK, CHMOD, SEND, OUT,
    UNKNOWN
};

/* As recorder.py's _HEADER. The two paths and the data follow; paths are relative to the root. */
struct header {
    uint32_t bytes;
    uint32_t kind;
    int64_t a, b;
    uint32_t path_bytes, other_bytes, data_bytes, pid; /* 40 bytes, without gaps */
};

struct shared {
    atomic_uint ready;
    atomic_llong syncs;
    pthread_mutex_t lock;
};

static char root[PATH_MAX];
static size_t root_bytes;
static int log_fd = -1;
static struct shared *shared;

static void *real(const char *name) {
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL)
        abort();
    return symbol;
}

static void fail(const char *what) {
    dprintf(2, "recorder: %s: %s\n", what, strerror(errno));
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("RECORDER_ROOT"), *log = getenv("RECORDER_LOG");
    if (folder == NULL || log == NULL)
        return;
    char name[PATH_MAX];
    snprintf(root, sizeof root, "%s", folder);
    root_bytes = strlen(root);
    snprintf(name, sizeof name, "%s.lock", log);
    int fd = REAL(open)(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) != 0 || REAL(ftruncate)(fd, sizeof *shared) != 0)
        fail("lock");
    shared = REAL(mmap)(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    if (!atomic_load(&shared->ready)) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST); /* whoever is killed must not stop the rest */
        pthread_mutex_init(&shared->lock, &attributes);
        atomic_store(&shared->ready, 1);
    }
    flock(fd, LOCK_UN); /* closing would not do: the mapping keeps the file open */
    close(fd);
    fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        fail("log");
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 700); /* out of the way of those who count on low numbers */
    if (log_fd < 0)
        log_fd = fd;
    else
        close(fd);
}

static void lock(void) {
    if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&shared->lock);
}

static void unlock(void) { pthread_mutex_unlock(&shared->lock); }

/* The caller holds the lock. */
static void append(enum kind kind, int64_t a, int64_t b, const char *path, const char *other, const struct iovec *data,
                   int parts, size_t data_bytes) {
    struct header header = {
        .kind = kind, .a = a, .b = b, .path_bytes = strlen(path), .other_bytes = strlen(other),
        .data_bytes = data_bytes, .pid = getpid(),
    };
    header.bytes = sizeof header + header.path_bytes + header.other_bytes + data_bytes;
    char *entry = malloc(header.bytes), *at = entry;
    if (entry == NULL)
        fail("memory");
    at = mempcpy(at, &header, sizeof header);
    at = mempcpy(at, path, header.path_bytes);
    at = mempcpy(at, other, header.other_bytes);
    for (int part = 0; part < parts && data_bytes > 0; part++) {
        size_t size = data[part].iov_len < data_bytes ? data[part].iov_len : data_bytes;
        at = mempcpy(at, data[part].iov_base, size);
        data_bytes -= size;
    }
    if (REAL(write)(log_fd, entry, header.bytes) != (ssize_t)header.bytes)
        fail("log");
    free(entry);
}

static void note(enum kind kind, int64_t a, int64_t b, const char *path, const char *other) {
    append(kind, a, b, path, other, NULL, 0, 0);
}

/* Below the root? Then the rest of the path; the root itself is "". */
static const char *below(const char *path) {
    if (log_fd < 0 || strncmp(path, root, root_bytes) != 0)
        return NULL;
    if (path[root_bytes] == '\0')
        return path + root_bytes;
    return path[root_bytes] == '/' ? path + root_bytes + 1 : NULL;
}

static const char *below_at(int folder, const char *path, char *buffer) {
    if (log_fd < 0 || path == NULL)
        return NULL;
    if (path[0] == '/') {
        snprintf(buffer, PATH_MAX, "%s", path);
    } else {
        char name[64];
        if (folder == AT_FDCWD)
            snprintf(name, sizeof name, "/proc/self/cwd");
        else
            snprintf(name, sizeof name, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(name, buffer, PATH_MAX - 1);
        if (size < 0)
            return NULL;
        snprintf(buffer + size, PATH_MAX - size, "/%s", path);
    }
    return below(buffer);
}

static const char *below_fd(int fd, char *buffer) {
    char name[64];
    if (log_fd < 0 || fd == log_fd)
        return NULL;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, buffer, PATH_MAX - 1);
    if (size < 0)
        return NULL;
    buffer[size] = '\0';
    return below(buffer);
}

static int64_t inode(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? (int64_t)status.st_ino : -1;
}

static int open_recorded(int folder, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = flags & (O_CREAT | O_TRUNC) ? below_at(folder, path, buffer) : NULL;
    if (name == NULL)
        return REAL(openat)(folder, path, flags, mode);
    struct stat status;
    lock();
    int is_new = fstatat(folder, path, &status, 0) != 0;
    int fd = REAL(openat)(folder, path, flags, mode);
    if (fd >= 0 && fstat(fd, &status) == 0) {
        if (is_new)
            note(CREATE, status.st_ino, status.st_mode & 07777, name, "");
        else if (flags & O_TRUNC)
            note(TRUNCATE, status.st_ino, 0, "", "");
    }
    unlock();
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list arguments; \
        va_start(arguments, last); \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments); \
    }

EXPORT int open(const char *path, int flags, ...) {
    MODE(flags)
    return open_recorded(AT_FDCWD, path, flags, mode);
}
EXPORT int open64(const char *path, int flags, ...) {
    MODE(flags)
    return open_recorded(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
EXPORT int openat(int folder, const char *path, int flags, ...) {
    char buffer[PATH_MAX];
    MODE(flags)
    if (!(flags & (O_CREAT | O_TRUNC)) || below_at(folder, path, buffer) == NULL)
        return REAL(openat64)(folder, path, flags, mode);
    return open_recorded(folder, path, flags, mode);
}
EXPORT int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return open_recorded(folder, path, flags | O_LARGEFILE, mode);
}
EXPORT int creat(const char *path, mode_t mode) {
    return open_recorded(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
EXPORT int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* Streams of the C library write past the calls below: one that writes a file below the root is made of these calls. */
static ssize_t stream_read(void *fd, char *data, size_t bytes) { return read(*(int *)fd, data, bytes); }
static ssize_t stream_write(void *fd, const char *data, size_t bytes) {
    ssize_t done = write(*(int *)fd, data, bytes);
    return done < 0 ? 0 : done; /* that is how a stream is told of an error */
}
static int stream_seek(void *fd, off64_t *at, int from) {
    off64_t reached = lseek64(*(int *)fd, *at, from);
    if (reached < 0)
        return -1;
    *at = reached;
    return 0;
}
static int stream_close(void *fd) {
    int result = close(*(int *)fd);
    free(fd);
    return result;
}
static FILE *fopen_recorded(const char *path, const char *mode, FILE *(*open_stream)(const char *, const char *)) {
    char buffer[PATH_MAX];
    int is_plus = strchr(mode, '+') != NULL;
    if ((mode[0] == 'r' && !is_plus) || below_at(AT_FDCWD, path, buffer) == NULL)
        return open_stream(path, mode);
    int flags = (is_plus ? O_RDWR : O_WRONLY) | O_CLOEXEC;
    flags |= mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0;
    int fd = open_recorded(AT_FDCWD, path, flags, 0666);
    if (fd < 0)
        return NULL;
    int *kept = malloc(sizeof *kept);
    if (kept == NULL)
        fail("memory");
    *kept = fd;
    return fopencookie(kept, mode, (cookie_io_functions_t){stream_read, stream_write, stream_seek, stream_close});
}
EXPORT FILE *fopen(const char *path, const char *mode) { return fopen_recorded(path, mode, REAL(fopen)); }
EXPORT FILE *fopen64(const char *path, const char *mode) { return fopen_recorded(path, mode, REAL(fopen64)); }

/* What is told: `port` is the peer's, of a TCP connection. */
static void tell(int fd, size_t bytes, const struct iovec *data, int parts) {
    if (log_fd < 0)
        return;
    int at_errno = errno;
    if (fd == 1 || fd == 2) {
        lock();
        append(OUT, fd, bytes, "", "", data, parts, bytes < 4096 ? bytes : 4096);
        unlock();
    } else {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        int port = -1;
        if (getpeername(fd, (struct sockaddr *)&address, &size) == 0) {
            if (address.ss_family == AF_INET)
                port = ntohs(((struct sockaddr_in *)&address)->sin_port);
            else if (address.ss_family == AF_INET6)
                port = ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
        }
        if (port >= 0) {
            lock();
            note(SEND, port, bytes, "", "");
            unlock();
        }
    }
    errno = at_errno;
}

static size_t total(const struct iovec *data, int parts) {
    size_t bytes = 0;
    for (int part = 0; part < parts; part++)
        bytes += data[part].iov_len;
    return bytes;
}

/* `offset` is -1 where the file's own position counts. */
static ssize_t write_recorded(int fd, const struct iovec *data, int parts, off_t offset) {
    char buffer[PATH_MAX];
    int recorded = below_fd(fd, buffer) != NULL;
    if (!recorded) {
        tell(fd, total(data, parts), data, parts);
        return offset < 0 ? REAL(writev)(fd, data, parts) : REAL(pwritev)(fd, data, parts, offset);
    }
    lock();
    ssize_t done = offset < 0 ? REAL(writev)(fd, data, parts) : REAL(pwritev)(fd, data, parts, offset);
    int at_errno = errno;
    if (done > 0) {
        off_t from = offset < 0 ? lseek(fd, 0, SEEK_CUR) - done : offset;
        append(WRITE, inode(fd), from, "", "", data, parts, done);
    }
    unlock();
    errno = at_errno;
    return done;
}

static ssize_t write_one(int fd, const void *data, size_t bytes, off_t offset) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    return write_recorded(fd, &part, 1, offset);
}

EXPORT ssize_t write(int fd, const void *data, size_t bytes) {
    return log_fd < 0 ? REAL(write)(fd, data, bytes) : write_one(fd, data, bytes, -1);
}
EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) { return write_one(fd, data, bytes, at); }
EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t at) { return write_one(fd, data, bytes, at); }
EXPORT ssize_t writev(int fd, const struct iovec *data, int parts) { return write_recorded(fd, data, parts, -1); }
EXPORT ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t at) {
    return write_recorded(fd, data, parts, at);
}
EXPORT ssize_t pwritev64(int fd, const struct iovec *data, int parts, off_t at) {
    return write_recorded(fd, data, parts, at);
}
EXPORT ssize_t pwritev2(int fd, const struct iovec *data, int parts, off_t at, int flags) {
    (void)flags; /* how, not what */
    return write_recorded(fd, data, parts, at);
}
EXPORT ssize_t pwritev64v2(int fd, const struct iovec *data, int parts, off_t at, int flags) {
    return pwritev2(fd, data, parts, at, flags);
}

EXPORT ssize_t send(int fd, const void *data, size_t bytes, int flags) {
    tell(fd, bytes, NULL, 0);
    return REAL(send)(fd, data, bytes, flags);
}
EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    tell(fd, total(message->msg_iov, message->msg_iovlen), NULL, 0);
    return REAL(sendmsg)(fd, message, flags);
}

static int resize(enum kind kind, int fd, int64_t size, int (*change)(int, off_t), int (*allocate)(int, int, off_t, off_t),
                  off_t from) {
    char buffer[PATH_MAX];
    int recorded = below_fd(fd, buffer) != NULL;
    if (recorded)
        lock();
    int result = change != NULL ? change(fd, size) : allocate(fd, 0, from, size - from);
    if (recorded) {
        if (result == 0)
            note(kind, inode(fd), size, "", "");
        unlock();
    }
    return result;
}
EXPORT int ftruncate(int fd, off_t size) { return resize(TRUNCATE, fd, size, REAL(ftruncate), NULL, 0); }
EXPORT int ftruncate64(int fd, off_t size) { return resize(TRUNCATE, fd, size, REAL(ftruncate), NULL, 0); }
EXPORT int posix_fallocate(int fd, off_t from, off_t bytes) {
    return resize(ALLOCATE, fd, from + bytes, NULL, REAL(fallocate), from) == 0 ? 0 : errno;
}
EXPORT int posix_fallocate64(int fd, off_t from, off_t bytes) { return posix_fallocate(fd, from, bytes); }

static int sync_recorded(int fd, int (*sync)(int)) {
    char buffer[PATH_MAX];
    if (below_fd(fd, buffer) == NULL)
        return sync(fd);
    int64_t number = atomic_fetch_add(&shared->syncs, 1), file = inode(fd);
    lock();
    note(SYNC_BEGIN, number, file, "", "");
    unlock();
    int result = sync(fd), at_errno = errno;
    if (result == 0) {
        lock();
        note(SYNC_END, number, file, "", "");
        unlock();
    }
    errno = at_errno;
    return result;
}
EXPORT int fsync(int fd) { return sync_recorded(fd, REAL(fsync)); }
EXPORT int fdatasync(int fd) { return sync_recorded(fd, REAL(fdatasync)); }

static int is_socket(int folder, const char *path) {
    struct stat status;
    return fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(status.st_mode);
}

EXPORT int renameat2(int folder, const char *path, int other_folder, const char *other, unsigned flags) {
    char buffer[PATH_MAX], other_buffer[PATH_MAX];
    const char *from = below_at(folder, path, buffer), *to = below_at(other_folder, other, other_buffer);
    if (from == NULL || to == NULL || is_socket(folder, path))
        return REAL(renameat2)(folder, path, other_folder, other, flags);
    lock();
    int result = REAL(renameat2)(folder, path, other_folder, other, flags);
    if (result == 0)
        note(flags & RENAME_EXCHANGE ? EXCHANGE : RENAME, 0, 0, from, to);
    unlock();
    return result;
}
EXPORT int rename(const char *path, const char *other) { return renameat2(AT_FDCWD, path, AT_FDCWD, other, 0); }
EXPORT int renameat(int folder, const char *path, int other_folder, const char *other) {
    return renameat2(folder, path, other_folder, other, 0);
}

EXPORT int linkat(int folder, const char *path, int other_folder, const char *other, int flags) {
    char buffer[PATH_MAX], other_buffer[PATH_MAX];
    const char *from = below_at(folder, path, buffer), *to = below_at(other_folder, other, other_buffer);
    if (from == NULL || to == NULL)
        return REAL(linkat)(folder, path, other_folder, other, flags);
    lock();
    int result = REAL(linkat)(folder, path, other_folder, other, flags);
    if (result == 0)
        note(LINK, 0, 0, from, to);
    unlock();
    return result;
}
EXPORT int link(const char *path, const char *other) { return linkat(AT_FDCWD, path, AT_FDCWD, other, 0); }

EXPORT int unlinkat(int folder, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = below_at(folder, path, buffer);
    if (name == NULL || is_socket(folder, path))
        return REAL(unlinkat)(folder, path, flags);
    lock();
    int result = REAL(unlinkat)(folder, path, flags);
    if (result == 0)
        note(UNLINK, 0, 0, name, "");
    unlock();
    return result;
}
EXPORT int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
EXPORT int remove(const char *path) {
    struct stat status;
    int is_folder = lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
    return unlinkat(AT_FDCWD, path, is_folder ? AT_REMOVEDIR : 0);
}

EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    struct stat status;
    const char *name = below_at(folder, path, buffer);
    if (name == NULL)
        return REAL(mkdirat)(folder, path, mode);
    lock();
    int result = REAL(mkdirat)(folder, path, mode);
    if (result == 0 && fstatat(folder, path, &status, 0) == 0)
        note(MKDIR, status.st_ino, status.st_mode & 07777, name, "");
    unlock();
    return result;
}
EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

EXPORT int fchmod(int fd, mode_t mode) {
    char buffer[PATH_MAX];
    int result = REAL(fchmod)(fd, mode);
    if (result == 0 && below_fd(fd, buffer) != NULL) {
        lock();
        note(CHMOD, inode(fd), mode, "", "");
        unlock();
    }
    return result;
}

/* What the replay has no model of must not happen to a file below the root. */
static void unknown(int fd, const char *what) {
    char buffer[PATH_MAX];
    const char *name = below_fd(fd, buffer);
    if (name == NULL)
        return;
    lock();
    note(UNKNOWN, 0, 0, name, what);
    unlock();
}
EXPORT void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE)
        unknown(fd, "mmap");
    return REAL(mmap)(at, bytes, protection, flags, fd, offset);
}
EXPORT void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return mmap(at, bytes, protection, flags, fd, offset);
}
EXPORT int fallocate(int fd, int mode, off_t from, off_t bytes) {
    unknown(fd, "fallocate");
    return REAL(fallocate)(fd, mode, from, bytes);
}
EXPORT int fallocate64(int fd, int mode, off_t from, off_t bytes) { return fallocate(fd, mode, from, bytes); }
EXPORT ssize_t sendfile(int to, int from, off_t *offset, size_t bytes) {
    unknown(to, "sendfile");
    return REAL(sendfile)(to, from, offset, bytes);
}
EXPORT ssize_t sendfile64(int to, int from, off_t *offset, size_t bytes) { return sendfile(to, from, offset, bytes); }
EXPORT ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t bytes, unsigned flags) {
    unknown(to, "copy_file_range");
    return REAL(copy_file_range)(from, from_at, to, to_at, bytes, flags);
}
EXPORT int truncate(const char *path, off_t size) {
    int fd = REAL(open)(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = ftruncate(fd, size);
    close(fd);
    return result;
}
EXPORT int truncate64(const char *path, off_t size) { return truncate(path, size); }
