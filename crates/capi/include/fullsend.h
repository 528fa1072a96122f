/*
 * fullsend: a TCP/IP stack within your program.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A stack is an IP host with its own addresses, over a TUN or TAP device or over your own packet
 * transport. Its functions are the BSD socket calls with the prefix fs_, with Linux's options, flags,
 * structures and errors:
 *
 *     fs_stack *stack = fs_stack_create("tun=fs0,address=10.9.0.2/24", NULL);
 *     int fd = fs_socket(stack, AF_INET, SOCK_STREAM, 0);
 *     fs_connect(fd, (struct sockaddr *)&server, sizeof server);
 *     fs_write(fd, "hello", 5);
 *
 * Link with -lfullsend. The structures and constants are those of the system's headers, which this
 * header includes.
 *
 * Errors. A function that fails returns -1 (or NULL instead of a pointer) and sets errno of the calling
 * thread to the value that the system call of that name sets on Linux. A null pointer where one is not
 * allowed fails with EFAULT. Signals do not interrupt calls (there is no EINTR), and no call raises
 * SIGPIPE. EIO reports a bug in the library, which is also written to standard error: destroy the
 * stack.
 *
 * Descriptors are ints assigned by the library, from 0x40000000 up, which the kernel does not assign:
 * the kernel's calls fail with EBADF on them, and so do the library's on the kernel's. Use
 * fs_stack_eventfd() to wait for both kinds at once.
 *
 * Threads. Every function may be called from any thread. A call that waits sleeps in the kernel.
 * It fails with EBADF if another thread closes its descriptor, and with ESHUTDOWN if the stack is
 * destroyed; fs_shutdown() wakes it as on Linux.
 *
 * fork. A child process cannot use the stacks of its parent: it does not have their threads, and the
 * device belongs to the parent. Create stacks after forking, or call exec at once.
 *
 * Pointers are used during the call only, except for MSG_ZEROCOPY, fs_callbacks.context, and where a
 * function's comment says otherwise.
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

/* A stack. The library does not dereference the pointer: a destroyed stack fails with EINVAL. */
typedef struct fs_stack fs_stack;

/* Functions of a program that carries a stack's packets itself. */
struct fs_callbacks {
    /* Passed to both functions unchanged. It must stay valid until fs_stack_destroy() or
     * fs_stack_shutdown() has destroyed the stack and no other call on the stack is running. */
    void *context;
    /* Receives a packet that the stack sends: an IP packet, or an Ethernet frame with link=ethernet.
     * It consists of the `count` pieces in order, which stay valid until the function returns.
     * Called on any thread that calls the stack, on one at a time, in the order of sending and
     * without any lock held: it may call the stack (for instance fs_stack_input() of another one), but
     * must not wait in a call of this one. Must not be NULL. */
    void (*output)(void *context, const struct iovec *pieces, int count);
    /* Returns the time in nanoseconds since any fixed point; it must never run backwards. Called on any
     * thread with the stack's lock held: it must not call the stack. If NULL, the time is the last
     * `now_ns` of fs_stack_poll(). */
    uint64_t (*now)(void *context);
};

/* ---- Stacks ---- */

/*
 * Creates a stack. `settings` are KEY=VALUE, separated by commas, semicolons or line ends:
 *
 *     tun=NAME, tap=NAME    the device to use (created if it does not exist; needs CAP_NET_ADMIN)
 *     address=10.9.0.2/24   an address of the stack with its prefix length, IPv4 or IPv6; may be repeated
 *     kernel_address=...    an address for the kernel's side of the TUN or TAP; may be repeated
 *     gateway=10.9.0.1      gateway of the default route of its address family
 *     route=10.8.0.0/16 via 10.9.0.1      without "via", a destination on the link
 *     mtu=1500              size of the largest IP packet, in bytes
 *     link=ethernet         header that packets begin with, for callbacks; default ip
 *     mac=02:00:00:00:00:01 Ethernet address of the stack; default derived from the seed
 *     offload=csum,tso4     offloads to request from a TUN or TAP; default all
 *     gso=off, gro=off      send no super-segments; do not coalesce received packets
 *     qdisc=fq              also "tbf rate 100mbit burst 64kb", "pfifo limit 1000"; default noqueue
 *     seed=1                seed of all random numbers, for repeatable tests
 *     pool_bytes=N          limit of free payload memory kept for reuse, in bytes
 *     control=PATH          a Unix socket through which `fullsend stat --socket PATH` inspects the stack
 *                           and sets options; PATH must contain a slash. control=on: a socket named
 *                           after this process in $XDG_RUNTIME_DIR/fullsend or /run/fullsend, where
 *                           `fullsend stat` finds it. Any process that may open the socket can read and
 *                           set everything; its mode is 0600. A thread of the library serves it, and
 *                           one more for each client. Packets cannot be captured through it.
 *     tcp_...=...           any tunable by its Linux name, with or without "net.ipv4."
 *
 * Without callbacks, `tun` or `tap` is required, and a thread of the library drives the stack. With
 * callbacks there is no such thread: pass received packets to fs_stack_input(), and call
 * fs_stack_poll() no later than fs_stack_deadline().
 *
 * Fails with EINVAL for an invalid setting, and with the system's error for the device (EPERM, EBUSY);
 * fs_last_error() returns a message.
 */
fs_stack *fs_stack_create(const char *settings, const struct fs_callbacks *callbacks);

/* Destroys a stack at once: its connections are reset, its descriptors closed, and calls that wait fail
 * with ESHUTDOWN. Data that is not yet acknowledged is lost, also that of descriptors which are closed
 * already: use fs_stack_shutdown(). */
int fs_stack_destroy(fs_stack *stack);

/* Waits until the peers have acknowledged all written data of the stack's connections and the ends of
 * those that fs_close() or fs_shutdown() have ended, for at most `timeout_ms` (-1: until each connection
 * has timed out), and destroys the stack then. Close the connections before, or their peers see a reset
 * after the data. Fails with ETIMEDOUT if data is left; the stack continues, for another call or for
 * fs_stack_destroy(). A program that carries the packets on the same thread calls it with 0 in its loop,
 * until it returns 0. */
int fs_stack_shutdown(fs_stack *stack, int timeout_ms);

/* Changes a running stack: adds an "address", "route" or "gateway", or sets a tunable such as
 * "tcp_congestion_control". Fails with EINVAL for an invalid setting; see fs_last_error(). */
int fs_stack_set(fs_stack *stack, const char *key, const char *value);

/* Reads a tunable: writes at most size - 1 characters of its value, as Linux writes it, and a NUL to
 * `buffer`. Returns the length of the value. */
ssize_t fs_stack_get(fs_stack *stack, const char *key, char *buffer, size_t size);

/* Returns a descriptor of the kernel (an eventfd, which you must close) for your own poll loop: it
 * becomes readable whenever a descriptor becomes ready for an event for which a call, fs_poll() or
 * fs_epoll_wait() found it not ready. Read its eight bytes, then poll again with timeout 0. */
int fs_stack_eventfd(fs_stack *stack);

/* Passes a received packet to a stack with callbacks. A packet that cannot be parsed is dropped and
 * counted. */
int fs_stack_input(fs_stack *stack, const void *packet, size_t len);

/* Runs the timers of a stack with callbacks, and wakes calls whose timeout has expired. `now_ns` is
 * the time if fs_callbacks.now is NULL, and ignored otherwise. */
int fs_stack_poll(fs_stack *stack, uint64_t now_ns);

/* Returns the latest time at which fs_stack_poll() must be called; UINT64_MAX if no timer is set. */
uint64_t fs_stack_deadline(fs_stack *stack);

/* Returns the message of this thread's last fs_stack_ call that failed. It is valid until the next
 * such failure. */
const char *fs_last_error(void);

/* Returns the library's version, such as "0.1.0". */
const char *fs_version(void);

/* ---- Sockets: each function behaves as the system call of its name ---- */

/* Domains AF_INET and AF_INET6; types SOCK_STREAM and SOCK_DGRAM, with SOCK_NONBLOCK. */
int fs_socket(fs_stack *stack, int domain, int type, int protocol);
int fs_bind(int fd, const struct sockaddr *addr, socklen_t len);
int fs_listen(int fd, int backlog);
/* Wait for a connection, for at most SO_RCVTIMEO. Both pointers may be NULL. */
int fs_accept(int fd, struct sockaddr *addr, socklen_t *len);
int fs_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
/* Waits for the handshake, for at most SO_SNDTIMEO; then fails with EINPROGRESS and the handshake
 * continues. */
int fs_connect(int fd, const struct sockaddr *addr, socklen_t len);
int fs_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int fs_getpeername(int fd, struct sockaddr *addr, socklen_t *len);
int fs_shutdown(int fd, int how);
/* Written data is still delivered, as long as the stack exists. If the descriptor has memory on loan
 * (MSG_ZEROCOPY), this waits for a running `output` of another thread: do not call it while holding a
 * lock that `output` takes, as both would wait forever. */
int fs_close(int fd);
int fs_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int fs_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
/* F_GETFL and F_SETFL with O_NONBLOCK; F_GETFD and F_SETFD have no effect. If the command takes no
 * argument, pass 0. */
int fs_fcntl(int fd, int command, int argument);
/* FIONBIO, FIONREAD (SIOCINQ), SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK. */
int fs_ioctl(int fd, unsigned long request, int *argument);

/* ---- Data. A sending call on a stream that may wait continues until all bytes are queued; a receiving
 * call returns the data that has arrived, or with MSG_WAITALL all that was requested.
 *
 * MSG_ZEROCOPY on a stream with SO_ZEROCOPY lends the memory of a call with one piece. Do not change or
 * free it until the error queue (MSG_ERRQUEUE) has reported the completion of that call. It does so when
 * no packet, queue or reader refers to the memory any more, which can be later than its acknowledgement
 * or the reset of the connection. fs_close() also ends the loan: before it returns, it copies the memory
 * that is still in use, and waits for a running `output` of another thread (an `output` that closes the
 * descriptor itself can use its pieces until it returns). So does fs_stack_destroy(), if no other call
 * on the stack is running. Such a call may accept only a part of the memory, and fails with ENOBUFS while
 * the completions of 512 calls are outstanding or unread. Calls with several pieces copy, and so does
 * delivery to an address of the stack itself; the completion reports it
 * (SO_EE_CODE_ZEROCOPY_COPIED). ---- */

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

/* ---- Several descriptors. All descriptors of a call must belong to one stack (else EXDEV). ---- */

/* At most 1,048,576 entries (else EINVAL). A descriptor that is not the library's is reported as
 * POLLNVAL; without any of the library's, the call sleeps as poll(2) does. */
int fs_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int fs_epoll_create1(fs_stack *stack, int flags);
/* EPOLLET, EPOLLONESHOT and EPOLLEXCLUSIVE work as on Linux; a set may be a member of another set. */
int fs_epoll_ctl(int epfd, int operation, int fd, struct epoll_event *event);
/* Returns at most 64 events. */
int fs_epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms);

/* ---- Pipes of a stack, for splice: fds[0] is the read end, fds[1] the write end. ---- */

int fs_pipe2(fs_stack *stack, int fds[2], int flags);
/* Moves bytes between a pipe and a socket, or between two pipes, without copying. The offsets must be
 * NULL (else ESPIPE). */
ssize_t fs_splice(int from, off_t *from_offset, int to, off_t *to_offset, size_t len,
                  unsigned int flags);

#ifdef __cplusplus
}
#endif

#endif
