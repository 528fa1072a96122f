/*
 * fullsend: a TCP/IP stack within your program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A stack is a host of its own, with its own addresses, over a TUN or TAP device or over your own
 * packet transport. Its calls are BSD's under the prefix fs_, with Linux's options, flags,
 * structures and errors:
 *
 *     fs_stack *stack = fs_stack_create("tun=fs0,address=10.9.0.2/24", NULL);
 *     int fd = fs_socket(stack, AF_INET, SOCK_STREAM, 0);
 *     fs_connect(fd, (struct sockaddr *)&server, sizeof server);
 *     fs_write(fd, "hello", 5);
 *
 * Link with -lfullsend. The structures and constants are those of the system's headers, which this
 * one includes.
 *
 * Errors. A function that fails returns -1 (a pointer: NULL) and sets errno of the calling thread;
 * each is what the system call of that name gives on Linux. A null pointer where there must be
 * none is EFAULT. No call is interrupted by signals (there is no EINTR), and none raises SIGPIPE. EIO
 * means a mistake in the library, which is written to standard error: destroy the stack.
 *
 * Descriptors are ints of the library's own, from 0x40000000 up, which no kernel hands out: the
 * kernel's calls refuse them with EBADF, and the library's refuse the kernel's. Use
 * fs_stack_eventfd() to wait for both kinds at once.
 *
 * Threads. Every function may be called from any thread. A call that waits sleeps in the kernel.
 * When another thread closes its descriptor it fails with EBADF; shutdown wakes it as on Linux;
 * when the stack is destroyed it fails with ESHUTDOWN.
 *
 * fork. A child has no use of its parent's stacks: their thread is not there, and the device belongs
 * to the parent. Create stacks after forking, or exec at once.
 *
 * Pointers are used during the call only, but for MSG_ZEROCOPY, fs_callbacks.context, and what is
 * said at a function.
 */
#ifndef FULLSEND_H
#define FULLSEND_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stack. Never dereferenced: one that was destroyed is EINVAL. */
typedef struct fs_stack fs_stack;

/* How you carry a stack's packets yourself. */
struct fs_callbacks {
    /* Given to both functions as it is. It must live until fs_stack_destroy() has returned and no
     * other call on the stack runs. */
    void *context;
    /* Takes a packet that leaves the stack: an IP packet, or an Ethernet frame with link=ethernet.
     * Its bytes are those of the `count` pieces, one behind the other, and live until you return.
     * Called on any thread that calls the stack, by one at a time and in the order of sending,
     * without any lock: it may call the stack (fs_stack_input() of another one, say), but must not
     * wait in a call of this one. Must not be NULL. */
    void (*output)(void *context, const struct iovec *pieces, int count);
    /* What time it is: nanoseconds since whenever you like, never going back. Called on any thread,
     * with the stack's lock held: it must not call the stack. If NULL, time is what fs_stack_poll() was told last. */
    uint64_t (*now)(void *context);
};

/* ---- Stacks ---- */

/*
 * Makes a stack. `settings` are KEY=VALUE, separated by commas, semicolons or line ends:
 *
 *     tun=NAME, tap=NAME    run over that device (made if it does not exist; needs CAP_NET_ADMIN)
 *     address=10.9.0.2/24   an address of the stack, with its prefix; once for each, IPv4 and IPv6
 *     kernel_address=...    the same for the kernel's side of the TUN or TAP
 *     gateway=10.9.0.1      the default route of the gateway's family
 *     route=10.8.0.0/16 via 10.9.0.1      without "via", straight to the link
 *     mtu=1500              largest IP packet, bytes
 *     link=ethernet         packets begin with an Ethernet header; with callbacks, default ip
 *     mac=02:00:00:00:00:01 hardware address; default made up
 *     offload=csum,tso4     which offloads to ask a TUN or TAP for; default all
 *     gso=off, gro=off      no super-segments out, no joining of packets in
 *     qdisc=fq              also "tbf rate 100mbit burst 64kb", "pfifo limit 1000"; default noqueue
 *     seed=1                all random numbers derive from it: for tests that must repeat
 *     pool_bytes=N          free payload memory kept for reuse
 *     control=PATH          a Unix socket through which `fullsend stat --socket PATH` inspects the stack
 *                           and sets options; PATH has a slash in it. control=on: a socket named for
 *                           this process in $XDG_RUNTIME_DIR/fullsend or /run/fullsend, where
 *                           `fullsend stat` looks by itself. Whoever may open the socket may see and
 *                           set everything; its mode is 0600. A thread of the library serves it, and
 *                           one more for each client. Packets cannot be captured through it.
 *     tcp_...=...           any tunable by its Linux name, with or without "net.ipv4."
 *
 * Without callbacks there must be a tun or tap, and a thread of the library drives the stack. With
 * callbacks there is no thread: hand packets to fs_stack_input(), and call fs_stack_poll() at
 * fs_stack_deadline() at the latest.
 *
 * Fails with EINVAL for a setting that makes no sense, and with what the system says about the
 * device (EPERM, EBUSY); fs_last_error() tells in words.
 */
fs_stack *fs_stack_create(const char *settings, const struct fs_callbacks *callbacks);

/* Ends a stack: connections are reset, its descriptors closed, calls that wait fail with
 * ESHUTDOWN. What was written and is not acknowledged yet is lost: see SO_LINGER, or wait until
 * fs_ioctl(fd, SIOCOUTQ) gives 0. */
int fs_stack_destroy(fs_stack *stack);

/* Changes a running stack: adds an "address", "route" or "gateway", or sets a tunable such as
 * "tcp_congestion_control". EINVAL, and fs_last_error(), when that cannot be. */
int fs_stack_set(fs_stack *stack, const char *key, const char *value);

/* The value of a tunable as Linux writes it: at most size - 1 characters of it and a NUL go to
 * `buffer`. Returns its length. */
ssize_t fs_stack_get(fs_stack *stack, const char *key, char *buffer, size_t size);

/* A descriptor of the kernel's (an eventfd, yours to close), for your own poll loop: it becomes
 * readable whenever a descriptor becomes ready for something that a call or fs_poll() or
 * fs_epoll_wait() found it not ready for. Read its eight bytes, then ask again with time-out 0. */
int fs_stack_eventfd(fs_stack *stack);

/* Gives a packet to a stack with callbacks, as it came. What cannot be parsed is dropped and
 * counted, as by any host. */
int fs_stack_input(fs_stack *stack, const void *packet, size_t len);

/* Runs the timers of a stack with callbacks, and wakes calls whose time-out has come. `now_ns` is
 * the time if fs_callbacks.now is NULL, else it is not looked at. */
int fs_stack_poll(fs_stack *stack, uint64_t now_ns);

/* When fs_stack_poll() must be called at the latest; UINT64_MAX when nothing waits for a time. */
uint64_t fs_stack_deadline(fs_stack *stack);

/* What was wrong, in words, with the last fs_stack_ call of this thread that failed. Lives until
 * the next one. */
const char *fs_last_error(void);

/* The library's version, such as "0.1.0". */
const char *fs_version(void);

/* ---- Sockets: each as the system call of its name ---- */

/* Domains AF_INET and AF_INET6; types SOCK_STREAM and SOCK_DGRAM, with SOCK_NONBLOCK. */
int fs_socket(fs_stack *stack, int domain, int type, int protocol);
int fs_bind(int fd, const struct sockaddr *addr, socklen_t len);
int fs_listen(int fd, int backlog);
/* Wait for a connection, at most SO_RCVTIMEO. Both pointers may be NULL. */
int fs_accept(int fd, struct sockaddr *addr, socklen_t *len);
int fs_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
/* Waits until the connection stands, at most SO_SNDTIMEO (then EINPROGRESS, and it goes on). */
int fs_connect(int fd, const struct sockaddr *addr, socklen_t len);
int fs_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int fs_getpeername(int fd, struct sockaddr *addr, socklen_t *len);
int fs_shutdown(int fd, int how);
/* What was written still goes out, as long as the stack lives. If the descriptor has memory on loan
 * (MSG_ZEROCOPY), this waits for an `output` that another thread runs: do not call it while holding a
 * lock that `output` takes, or both wait for ever. */
int fs_close(int fd);
int fs_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int fs_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
/* F_GETFL and F_SETFL with O_NONBLOCK; F_GETFD and F_SETFD have no effect. Where the command takes
 * no argument, give 0. */
int fs_fcntl(int fd, int command, int argument);
/* FIONBIO, FIONREAD (SIOCINQ), SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK. */
int fs_ioctl(int fd, unsigned long request, int *argument);

/* ---- Data. A stream's call that may wait goes on until all is sent; one that receives returns
 * what there is, or all that was asked for with MSG_WAITALL.
 *
 * MSG_ZEROCOPY on a stream with SO_ZEROCOPY lends the memory of a call with one piece. Leave it as it
 * is until the error queue (MSG_ERRQUEUE) has reported that call's completion, which comes when no
 * packet, queue or reader refers to the memory any more: not when it was acknowledged, and not when
 * the connection was reset. fs_close() ends the loan, too: it copies what is still in use before it
 * returns (and waits for an `output` that another thread runs; one that closes the descriptor itself
 * has its pieces until it returns). So does fs_stack_destroy(), if no other call on the stack runs.
 * Such a call may take less than all, and fails with ENOBUFS while the completions of 512 calls are
 * outstanding or unread. Calls with several pieces copy, as does delivery to an address of the stack
 * itself; the completion says so (SO_EE_CODE_ZEROCOPY_COPIED). ---- */

ssize_t fs_read(int fd, void *buffer, size_t len);
ssize_t fs_readv(int fd, const struct iovec *pieces, int count);
ssize_t fs_recv(int fd, void *buffer, size_t len, int flags);
ssize_t fs_recvfrom(int fd, void *buffer, size_t len, int flags, struct sockaddr *addr,
                    socklen_t *addr_len);
ssize_t fs_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t fs_write(int fd, const void *buffer, size_t len);
ssize_t fs_writev(int fd, const struct iovec *pieces, int count);
ssize_t fs_send(int fd, const void *buffer, size_t len, int flags);
ssize_t fs_sendto(int fd, const void *buffer, size_t len, int flags, const struct sockaddr *addr,
                  socklen_t addr_len);
ssize_t fs_sendmsg(int fd, const struct msghdr *message, int flags);

/* ---- Many at once. All descriptors of one call belong to one stack (else EXDEV). ---- */

/* At most 1,048,576 entries (else EINVAL). A descriptor that is not one of these functions' is POLLNVAL;
 * without any, it sleeps as poll(2) does. */
int fs_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int fs_epoll_create1(fs_stack *stack, int flags);
/* EPOLLET, EPOLLONESHOT and EPOLLEXCLUSIVE as on Linux; a set may stand in another set. */
int fs_epoll_ctl(int epfd, int operation, int fd, struct epoll_event *event);
/* Tells at most 64 at once. */
int fs_epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms);

/* ---- Pipes of a stack's own, for splice: fds[0] is read, fds[1] is written. ---- */

int fs_pipe2(fs_stack *stack, int fds[2], int flags);
/* Moves bytes between a pipe and a socket, or two pipes, without a copy. The offsets must be NULL
 * (else ESPIPE). */
ssize_t fs_splice(int from, off_t *from_offset, int to, off_t *to_offset, size_t len,
                  unsigned int flags);

#ifdef __cplusplus
}
#endif

#endif
