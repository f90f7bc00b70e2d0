// A disk whose fsync takes 10 ms more (SLOW_FSYNC_MS says otherwise), for a process
// started with LD_PRELOAD: each fsync and fdatasync is done, and then waits.
//
//     cc -shared -fPIC -O2 -o slow_fsync.so slow_fsync.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static int slowly(const char *name, int fd) {
	int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
	int result = real(fd), error = errno;
	const char *text = getenv("SLOW_FSYNC_MS");
	long ms = text ? atol(text) : 10;
	struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
	while (nanosleep(&pause, &pause) == -1 && errno == EINTR) {
	}
	errno = error;
	return result;
}

int fsync(int fd) { return slowly("fsync", fd); }

int fdatasync(int fd) { return slowly("fdatasync", fd); }
