/* Notes what a program does to the files below a folder, so that tests/power/disk.py can take back what was not synced.

   Preloaded (LD_PRELOAD) into every process that works on the folder. It notes, in one order over all threads and
   processes, in the file `trace` of POWER_STATE:

   - before each change of a file's content or size: the bytes that it overwrites or cuts off, and the size before;
   - after each change of a folder (create, rename, link, remove): which name leads to which file from now on;
   - each sync, when it begins and when it has returned.

   A sync does not reach the disk: it only takes POWER_SYNC_US microseconds, or those of an asynchronous one. What makes it durable is the note of its
   end. A file that loses its last name gets another one in `stash` first, for its removal may have to be taken back.
   POWER_FORGETS is a pattern of paths: syncs of these are not noted at all, as if the program forgot them.
   What is not modelled ends the process with a sentence: mappings that write, O_SYNC, O_TMPFILE, symbolic links.

   The layer's own calls go through its wrappers too, which pass on what is outside of the folder.
   Descriptors are looked up in /proc each time: a table of our own would have to follow dup, fork, vfork and exec. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, FOLDER, WRITE, RESIZE, RENAME, LINK, REMOVE, SYNC_BEGIN, SYNC_END };

/* As in tests/power/trace.py. The name, the name it came from and the old bytes follow. */
struct note {
    uint32_t kind, name_length, from_length, old_length;
    uint64_t inode, folder, from_folder, offset, length, size;
};

struct place {
    char parent[PATH_MAX], name[NAME_MAX + 1];
    uint64_t folder;
};

static const char *root, *state, *forgets;
static size_t root_length;
static useconds_t sync_us;
static int trace = -1, lock = -1;
static uint32_t syncs;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define UNNAMED (O_TMPFILE & ~O_DIRECTORY)
#define REAL(name) \
    static typeof(&name) real; \
    if (!real) real = (typeof(&name))dlsym(RTLD_NEXT, #name)

static void refuse(const char *what, const char *path) {
    dprintf(STDERR_FILENO, "power: %s is not modelled: %s\n", what, path);
    abort();
}

static int open_state(const char *name, int flags) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", state, name);
    int handle = open(path, flags | O_CREAT | O_CLOEXEC, 0600);
    if (handle < 0) refuse("a state that cannot be opened", path);
    return handle;
}

/* A lock belongs to an open file: a forked process needs one of its own. */
static void open_all(void) {
    trace = open_state("trace", O_WRONLY | O_APPEND);
    lock = open_state("lock", O_RDWR);
    flock(open_state("alive", O_RDWR), LOCK_SH); /* for as long as this process lives */
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) {
    open_all();
    pthread_mutex_unlock(&mutex);
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("POWER_ROOT"), *delay = getenv("POWER_SYNC_US");
    if (!folder || !(state = getenv("POWER_STATE"))) return;
    sync_us = delay ? atoi(delay) : 0;
    forgets = getenv("POWER_FORGETS");
    open_all();
    pthread_atfork(before_fork, after_fork, in_child);
    root_length = strlen(folder);
    root = folder;
}

static void enter(void) {
    int before = errno;
    pthread_mutex_lock(&mutex);
    while (flock(lock, LOCK_EX) && errno == EINTR) continue;
    errno = before;
}

static void leave(void) {
    int before = errno;
    flock(lock, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = before;
}

static void put(struct note note, const char *name, const char *from, const void *old) {
    note.name_length = name ? strlen(name) : 0;
    note.from_length = from ? strlen(from) : 0;
    struct iovec parts[] = {
        {&note, sizeof note}, {(void *)name, note.name_length}, {(void *)from, note.from_length},
        {(void *)old, note.old_length},
    };
    size_t size = sizeof note + note.name_length + note.from_length + note.old_length;
    int before = errno;
    if (writev(trace, parts, 4) != (ssize_t)size) refuse("a trace that cannot be written", state);
    errno = before;
}

static int is_inside(const char *path) {
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* Whether a descriptor is of a file or folder that counts, and its path. */
static int locate(int handle, struct stat *status, char path[PATH_MAX]) {
    char link[32];
    if (!root || fstat(handle, status) || !(S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_inside(path);
}

static int counts(int handle, struct stat *status) {
    char path[PATH_MAX];
    return locate(handle, status, path);
}

/* Where a name is, if its folder counts. */
static int find(int at, const char *path, struct place *place) {
    char whole[PATH_MAX], link[32];
    struct stat status;
    if (!root || !path || !*path) return 0;
    int before = errno, inside = 0;
    ssize_t length = 0;
    if (*path != '/' && at != AT_FDCWD) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        length = readlink(link, whole, sizeof whole - 2);
        if (length < 0) length = 0;
        whole[length++] = '/';
    }
    if (length + strlen(path) < sizeof whole) {
        strcpy(whole + length, path);
        for (size_t end = strlen(whole); end > 1 && whole[end - 1] == '/';) whole[--end] = 0;
        char *slash = strrchr(whole, '/');
        snprintf(place->name, sizeof place->name, "%s", slash ? slash + 1 : whole);
        if (slash) slash[slash == whole] = 0;
        if (realpath(slash ? whole : ".", place->parent) && is_inside(place->parent) && !stat(place->parent, &status)) {
            place->folder = status.st_ino;
            inside = 1;
        }
    }
    errno = before;
    return inside;
}

static int look(const struct place *place, struct stat *status) {
    char path[2 * PATH_MAX];
    int before = errno;
    snprintf(path, sizeof path, "%s/%s", place->parent, place->name);
    int there = !lstat(path, status);
    errno = before;
    return there;
}

/* --- content ------------------------------------------------------------------------------------------------------ */

static void *bytes_of(int handle, uint64_t offset, uint64_t length) {
    char link[32], *bytes = malloc(length + 1);
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    int reader = open(link, O_RDONLY | O_CLOEXEC);
    for (uint64_t done = 0; done < length;) {
        ssize_t part = pread(reader, bytes + done, length - done, offset + done);
        if (part <= 0) refuse("a file that cannot be read", link);
        done += part;
    }
    close(reader);
    return bytes;
}

static void note_change(enum kind kind, int handle, uint64_t offset, uint64_t length, uint64_t old_length) {
    struct stat status;
    fstat(handle, &status);
    struct note note = {.kind = kind, .inode = status.st_ino, .offset = offset, .length = length,
                        .size = status.st_size, .old_length = old_length};
    void *old = old_length ? bytes_of(handle, offset, old_length) : NULL;
    put(note, NULL, NULL, old);
    free(old);
}

static void note_write(int handle, off_t at, uint64_t length) {
    struct stat status;
    fstat(handle, &status);
    uint64_t size = status.st_size, offset = at;
    if (fcntl(handle, F_GETFL) & O_APPEND) offset = size;
    else if (at < 0) offset = lseek(handle, 0, SEEK_CUR);
    uint64_t end = offset + length;
    note_change(WRITE, handle, offset, length, offset < size ? (end < size ? end : size) - offset : 0);
}

static void note_resize(int handle, uint64_t length) {
    struct stat status;
    fstat(handle, &status);
    uint64_t size = status.st_size;
    note_change(RESIZE, handle, length, length, length < size ? size - length : 0);
}

#define CHANGING(type, name, arguments, call, note) \
    type name arguments { \
        REAL(name); \
        struct stat status; \
        if (!counts(handle, &status)) return real call; \
        enter(); \
        note; \
        type done = real call; \
        leave(); \
        return done; \
    }

static uint64_t total(const struct iovec *parts, int count) {
    uint64_t sum = 0;
    for (int number = 0; number < count; number++) sum += parts[number].iov_len;
    return sum;
}

CHANGING(ssize_t, write, (int handle, const void *from, size_t length), (handle, from, length),
         note_write(handle, -1, length))
CHANGING(ssize_t, writev, (int handle, const struct iovec *parts, int count), (handle, parts, count),
         note_write(handle, -1, total(parts, count)))
CHANGING(ssize_t, pwrite, (int handle, const void *from, size_t length, off_t at), (handle, from, length, at),
         note_write(handle, at, length))
CHANGING(ssize_t, pwrite64, (int handle, const void *from, size_t length, off64_t at), (handle, from, length, at),
         note_write(handle, at, length))
CHANGING(ssize_t, pwritev, (int handle, const struct iovec *parts, int count, off_t at), (handle, parts, count, at),
         note_write(handle, at, total(parts, count)))
CHANGING(ssize_t, pwritev64, (int handle, const struct iovec *parts, int count, off64_t at), (handle, parts, count, at),
         note_write(handle, at, total(parts, count)))
CHANGING(ssize_t, pwritev2, (int handle, const struct iovec *parts, int count, off_t at, int flags),
         (handle, parts, count, at, flags), note_write(handle, at, total(parts, count)))
CHANGING(ssize_t, pwritev64v2, (int handle, const struct iovec *parts, int count, off64_t at, int flags),
         (handle, parts, count, at, flags), note_write(handle, at, total(parts, count)))
CHANGING(int, ftruncate, (int handle, off_t length), (handle, length), note_resize(handle, length))
CHANGING(int, ftruncate64, (int handle, off64_t length), (handle, length), note_resize(handle, length))

/* What is sent from another file: no more than that one still has. */
static uint64_t left_in(int source, const off64_t *from, size_t length) {
    struct stat status;
    if (fstat(source, &status) || !S_ISREG(status.st_mode)) refuse("copying from what is no file", "a descriptor");
    off64_t at = from ? *from : lseek(source, 0, SEEK_CUR), left = status.st_size > at ? status.st_size - at : 0;
    return (uint64_t)left < length ? (uint64_t)left : length;
}

#define SENDFILE(name, offset_type) \
    CHANGING(ssize_t, name, (int handle, int source, offset_type *from, size_t length), (handle, source, from, length), \
             note_write(handle, -1, left_in(source, (off64_t *)from, length)))
ssize_t sendfile(int, int, off_t *, size_t), sendfile64(int, int, off64_t *, size_t);
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int source, off64_t *from, int handle, off64_t *into, size_t length, unsigned flags) {
    REAL(copy_file_range);
    struct stat status;
    if (!counts(handle, &status)) return real(source, from, handle, into, length, flags);
    enter();
    note_write(handle, into ? *into : -1, left_in(source, from, length));
    ssize_t done = real(source, from, handle, into, length, flags);
    leave();
    return done;
}

#define ALLOCATING(name, arguments, call, ahead) \
    int name arguments { \
        REAL(name); \
        struct stat status; \
        if ((ahead) && counts(handle, &status)) refuse("allocating ahead", #name); \
        return real call; \
    }
ALLOCATING(fallocate, (int handle, int mode, off_t at, off_t length), (handle, mode, at, length),
           !(mode & FALLOC_FL_KEEP_SIZE))
ALLOCATING(fallocate64, (int handle, int mode, off64_t at, off64_t length), (handle, mode, at, length),
           !(mode & FALLOC_FL_KEEP_SIZE))
ALLOCATING(posix_fallocate, (int handle, off_t at, off_t length), (handle, at, length), 1)
ALLOCATING(posix_fallocate64, (int handle, off64_t at, off64_t length), (handle, at, length), 1)

#define MAPPING(name, offset_type) \
    void *name(void *at, size_t length, int protection, int flags, int handle, offset_type offset) { \
        REAL(name); \
        struct stat status; \
        if (handle >= 0 && (protection & PROT_WRITE) && (flags & MAP_SHARED) && counts(handle, &status)) \
            refuse("a mapping that writes", #name); \
        return real(at, length, protection, flags, handle, offset); \
    }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int open_noted(int at, const char *path, int flags, mode_t mode) {
    REAL(openat);
    struct place place;
    struct stat status;
    if (!(flags & (O_CREAT | O_TRUNC | O_SYNC | UNNAMED)) || !find(at, path, &place))
        return real(at, path, flags, mode);
    if (flags & (O_SYNC | UNNAMED)) refuse("O_SYNC or O_TMPFILE", path);
    enter();
    int there = look(&place, &status);
    if (there && S_ISREG(status.st_mode) && (flags & O_TRUNC) && status.st_size && !(flags & O_EXCL)) {
        int old = real(at, path, O_RDONLY | O_CLOEXEC);
        if (old >= 0) {
            note_resize(old, 0);
            close(old);
        }
    }
    int handle = real(at, path, flags, mode);
    if (handle >= 0 && !there && !fstat(handle, &status))
        put((struct note){.kind = CREATE, .inode = status.st_ino, .folder = place.folder}, place.name, NULL, NULL);
    leave();
    return handle;
}

#define OPENING(name, declared, at) \
    int name declared { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | UNNAMED) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return open_noted(at, path, flags, mode); \
    }
OPENING(open, (const char *path, int flags, ...), AT_FDCWD)
OPENING(open64, (const char *path, int flags, ...), AT_FDCWD)
OPENING(openat, (int at, const char *path, int flags, ...), at)
OPENING(openat64, (int at, const char *path, int flags, ...), at)

/* What is written through a FILE goes past us. RocksDB makes one of a descriptor for its own log, which nobody reads. */
#define STREAM(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(name); \
        struct place place; \
        if (*mode != 'r' && find(AT_FDCWD, path, &place)) refuse("a stream that writes", path); \
        return real(path, mode); \
    }
STREAM(fopen)
STREAM(fopen64)

static int resize_at(const char *path, off64_t length) {
    int handle = open_noted(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (handle < 0) return -1;
    int done = ftruncate64(handle, length);
    close(handle);
    return done;
}

int truncate(const char *path, off_t length) { return resize_at(path, length); }
int truncate64(const char *path, off64_t length) { return resize_at(path, length); }

/* --- names -------------------------------------------------------------------------------------------------------- */

/* Keep a file whose last name is about to go. */
static void stash(const struct place *place, const struct stat *status) {
    char path[2 * PATH_MAX], into[PATH_MAX];
    if (!S_ISREG(status->st_mode) || status->st_nlink > 1) return;
    snprintf(path, sizeof path, "%s/%s", place->parent, place->name);
    snprintf(into, sizeof into, "%s/stash/%llu", state, (unsigned long long)status->st_ino);
    int before = errno;
    if (link(path, into) && errno != EEXIST) refuse("a file that cannot be stashed", path);
    errno = before;
}

static int rename_noted(int from_at, const char *from, int into_at, const char *into, unsigned flags) {
    REAL(renameat2);
    struct place source, target;
    struct stat moved, replaced;
    int is_source = find(from_at, from, &source), is_target = find(into_at, into, &target);
    if (!is_source && !is_target) return real(from_at, from, into_at, into, flags);
    if (!is_source || !is_target || (flags & RENAME_EXCHANGE)) refuse("a rename across its edge, or an exchange", from);
    enter();
    int there = look(&source, &moved);
    if (look(&target, &replaced)) {
        if (there && replaced.st_ino == moved.st_ino) there = 0; /* two names of one file: nothing happens */
        else if (there) stash(&target, &replaced);
    }
    int done = real(from_at, from, into_at, into, flags);
    if (!done && there)
        put((struct note){.kind = RENAME, .inode = moved.st_ino, .folder = target.folder, .from_folder = source.folder},
            target.name, source.name, NULL);
    leave();
    return done;
}

int renameat2(int from_at, const char *from, int into_at, const char *into, unsigned flags) {
    return rename_noted(from_at, from, into_at, into, flags);
}
int renameat(int from_at, const char *from, int into_at, const char *into) {
    return rename_noted(from_at, from, into_at, into, 0);
}
int rename(const char *from, const char *into) { return rename_noted(AT_FDCWD, from, AT_FDCWD, into, 0); }

int linkat(int from_at, const char *from, int into_at, const char *into, int flags) {
    REAL(linkat);
    struct place source, target;
    struct stat status;
    int is_source = find(from_at, from, &source), is_target = find(into_at, into, &target);
    if (!is_target) return real(from_at, from, into_at, into, flags);
    if (!is_source) refuse("a link from outside", from);
    enter();
    int done = real(from_at, from, into_at, into, flags);
    if (!done && look(&target, &status))
        put((struct note){.kind = LINK, .inode = status.st_ino, .folder = target.folder}, target.name, NULL, NULL);
    leave();
    return done;
}

int link(const char *from, const char *into) { return linkat(AT_FDCWD, from, AT_FDCWD, into, 0); }

int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat);
    struct place place;
    struct stat status;
    if (!find(at, path, &place)) return real(at, path, flags);
    enter();
    int there = look(&place, &status);
    if (there) stash(&place, &status);
    int done = real(at, path, flags);
    if (!done && there)
        put((struct note){.kind = REMOVE, .inode = status.st_ino, .folder = place.folder}, place.name, NULL, NULL);
    leave();
    return done;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode) {
    REAL(mkdirat);
    struct place place;
    struct stat status;
    if (!find(at, path, &place)) return real(at, path, mode);
    enter();
    int done = real(at, path, mode);
    if (!done && look(&place, &status))
        put((struct note){.kind = FOLDER, .inode = status.st_ino, .folder = place.folder}, place.name, NULL, NULL);
    leave();
    return done;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int symlinkat(const char *target, int at, const char *path) {
    REAL(symlinkat);
    struct place place;
    if (find(at, path, &place)) refuse("a symbolic link", path);
    return real(target, at, path);
}

int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

/* --- syncs -------------------------------------------------------------------------------------------------------- */

/* A sync that is noted: `number` is 0 for one that is forgotten. */
struct sync {
    uint64_t inode, number;
};

static int begin_sync(int handle, struct sync *sync) {
    struct stat status;
    char path[PATH_MAX];
    if (!locate(handle, &status, path)) return 0;
    *sync = (struct sync){.inode = status.st_ino};
    if (forgets && !fnmatch(forgets, path, 0)) return 1;
    enter();
    sync->number = (uint64_t)getpid() << 32 | ++syncs;
    put((struct note){.kind = SYNC_BEGIN, .inode = sync->inode, .offset = sync->number}, NULL, NULL, NULL);
    leave();
    return 1;
}

static void end_sync(const struct sync *sync) {
    if (!sync->number) return;
    enter();
    put((struct note){.kind = SYNC_END, .inode = sync->inode, .offset = sync->number}, NULL, NULL, NULL);
    leave();
}

static int sync_noted(int handle, int (*real)(int)) {
    struct sync sync;
    if (!begin_sync(handle, &sync)) return real(handle);
    if (sync.number && sync_us) usleep(sync_us);
    end_sync(&sync);
    return 0;
}

#define SYNCING(name) \
    int name(int handle) { \
        REAL(name); \
        return sync_noted(handle, real); \
    }
SYNCING(fsync)
SYNCING(fdatasync)

/* By the kernel's asynchronous IO, which has no functions in the C library. Such a sync does reach the disk; its end is
   noted before the program learns of it. One sync at a time, as the program makes them. */
static struct sync running;

long syscall(long number, ...) {
    REAL(syscall);
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++) arguments[at] = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit && root) {
        if (arguments[1] != 1) refuse("more than one asynchronous request", "io_submit");
        const struct iocb *request = ((struct iocb **)arguments[2])[0];
        if (request->aio_lio_opcode != IOCB_CMD_FDSYNC) refuse("an asynchronous write", "io_submit");
        if (running.inode) refuse("a second asynchronous sync", "io_submit");
        if (!begin_sync(request->aio_fildes, &running)) running.inode = 0;
    }
    long done = real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    if (number == SYS_io_getevents && done == 1 && running.inode) {
        if (!((struct io_event *)arguments[3])->res) end_sync(&running);
        running.inode = 0;
    }
    return done;
}
