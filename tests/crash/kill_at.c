/* A preloaded library that SIGKILLs the process at its n-th change of a directory. Compiled by conftest.py.
 *
 * The file named by HEADRACE_KILL_FILE is shared by all processes of a run:
 *
 *     u64 armed      0: do nothing
 *     u64 nth        the call to die at, from 1; a count over all processes that it concerns
 *     u64 count      calls so far
 *     u64 parent     a process id
 *     u64 target     0: every process, 1: only the parent, 2: only the others
 *     u64 half       1: count writes only, and write half of the n-th before dying
 *     u64 fired      1 + the kind of the call that was died at
 *     u64 unused
 *     u64 kinds[7]   calls so far by kind: write fsync rename unlink mkdir link create
 *     u64 unused
 *     char prefix[]  only paths that begin with this count
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WRITE, FSYNC, RENAME, UNLINK, MKDIR, LINK, CREATE };

struct plan {
    uint64_t armed, nth, count, parent, target, half, fired, unused, kinds[7], unused2;
    char prefix[3968];
};

static struct plan *plan;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("HEADRACE_KILL_FILE");
    int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *memory = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) plan = memory;
    syscall(SYS_close, fd);
}

static void die(int kind) {
    __atomic_store_n(&plan->fired, 1 + kind, __ATOMIC_SEQ_CST);
    for (;;) syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

/* Whether this is the call to die at. */
static int reached(int kind, const char *path) {
    if (!plan || !__atomic_load_n(&plan->armed, __ATOMIC_SEQ_CST) || !path) return 0;
    if (strncmp(path, plan->prefix, strlen(plan->prefix)) != 0) return 0;
    int is_parent = (uint64_t)syscall(SYS_getpid) == plan->parent;
    if ((plan->target == 1 && !is_parent) || (plan->target == 2 && is_parent)) return 0;
    if (plan->half && kind != WRITE) return 0;
    __atomic_fetch_add(&plan->kinds[kind], 1, __ATOMIC_SEQ_CST);
    return __atomic_add_fetch(&plan->count, 1, __ATOMIC_SEQ_CST) == plan->nth;
}

static int reached_fd(int kind, int fd) {
    char link[64], path[4096];
    if (!plan || !plan->armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return reached(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define AT(kind, path) if (reached(kind, path)) die(kind)

ssize_t write(int fd, const void *data, size_t count) {
    if (reached_fd(WRITE, fd)) {
        if (plan->half) REAL(write)(fd, data, count / 2);
        die(WRITE);
    }
    return REAL(write)(fd, data, count);
}
int fsync(int fd) { if (reached_fd(FSYNC, fd)) die(FSYNC); return REAL(fsync)(fd); }
int fdatasync(int fd) { if (reached_fd(FSYNC, fd)) die(FSYNC); return REAL(fdatasync)(fd); }
int rename(const char *old, const char *new) { AT(RENAME, new); return REAL(rename)(old, new); }
int unlink(const char *path) { AT(UNLINK, path); return REAL(unlink)(path); }
int rmdir(const char *path) { AT(UNLINK, path); return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { AT(MKDIR, path); return REAL(mkdir)(path, mode); }
int link(const char *old, const char *new) { AT(LINK, new); return REAL(link)(old, new); }
int linkat(int a, const char *old, int b, const char *new, int flags) {
    AT(LINK, new);
    return REAL(linkat)(a, old, b, new, flags);
}

static int opened(const char *path, int flags, va_list arguments) {
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    if (flags & O_CREAT) AT(CREATE, path);
    return REAL(openat)(AT_FDCWD, path, flags, mode);
}
int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int fd = opened(path, flags, arguments);
    va_end(arguments);
    return fd;
}
int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int fd = opened(path, flags, arguments);
    va_end(arguments);
    return fd;
}
