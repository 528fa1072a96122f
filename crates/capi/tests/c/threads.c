/*
 * Tests threads that wait in calls on two stacks, which are joined by callbacks. Needs neither root
 * nor a device. Prints "done" and exits with 0 if everything works as the header says.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fullsend.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "line %d: %s (errno %d: %s)\n", __LINE__, #what, errno,        \
                    strerror(errno));                                                      \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)
#define FAILS(call, error) CHECK((call) == -1 && errno == (error))

static fs_stack *stacks[2];

/* ---- The wire ---- */

static void output(void *context, const struct iovec *pieces, int count) {
    char packet[2048];
    size_t len = 0;
    for (int i = 0; i < count; i++) {
        memcpy(packet + len, pieces[i].iov_base, pieces[i].iov_len);
        len += pieces[i].iov_len;
    }
    fs_stack_input(*(fs_stack **)context, packet, len);
}

static uint64_t now(void *context) {
    (void)context;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void *tick(void *unused) {
    (void)unused;
    for (;;) {
        for (int i = 0; i < 2; i++)
            if (fs_stack_deadline(stacks[i]) <= now(NULL)) fs_stack_poll(stacks[i], 0);
        usleep(500);
    }
    return NULL;
}

static struct sockaddr_in address(const char *text, int port) {
    struct sockaddr_in out = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, text, &out.sin_addr);
    return out;
}

/* ---- A thread that waits ---- */

struct waiting {
    pthread_t thread;
    int fd;
    int how; /* 0 read, 1 accept, 2 epoll_wait */
    volatile pid_t tid;
    char buffer[64];
    ssize_t result;
    int error;
};

static void *wait_in_call(void *argument) {
    struct waiting *w = argument;
    struct epoll_event event;
    w->tid = (pid_t)syscall(SYS_gettid);
    errno = 0;
    switch (w->how) {
    case 0: w->result = fs_read(w->fd, w->buffer, sizeof w->buffer); break;
    case 1: w->result = fs_accept(w->fd, NULL, NULL); break;
    case 2: w->result = fs_epoll_wait(w->fd, &event, 1, -1); break;
    }
    w->error = errno;
    return NULL;
}

static int is_asleep(pid_t tid) {
    char name[64], text[512];
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(name, "r");
    CHECK(file != NULL);
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[len] = 0;
    return strrchr(text, ')')[2] == 'S';
}

static void start(struct waiting *w, int fd, int how) {
    memset(w, 0, sizeof *w);
    w->fd = fd;
    w->how = how;
    CHECK(pthread_create(&w->thread, NULL, wait_in_call, w) == 0);
    while (w->tid == 0 || !is_asleep(w->tid)) sched_yield();
}

static void finish(struct waiting *w) {
    CHECK(pthread_join(w->thread, NULL) == 0);
    errno = w->error;
}

static void on_signal(int number) { (void)number; }

/* ---- The tests ---- */

static int listener;

static void connected(int *client, int *server) {
    struct sockaddr_in there = address("10.0.0.2", 80), peer;
    socklen_t len = sizeof peer;
    *client = fs_socket(stacks[0], AF_INET, SOCK_STREAM, 0);
    CHECK(fs_connect(*client, (struct sockaddr *)&there, sizeof there) == 0);
    *server = fs_accept(listener, (struct sockaddr *)&peer, &len);
    CHECK(*server >= 0x40000000 && len == sizeof peer);
    struct sockaddr_in own;
    CHECK(fs_getsockname(*client, (struct sockaddr *)&own, &len) == 0);
    CHECK(memcmp(&own, &peer, sizeof own) == 0);
}

static void calls_that_wait(void) {
    struct waiting w;
    int client, server;
    connected(&client, &server);

    start(&w, server, 0);
    /* A signal does not interrupt the call. */
    CHECK(pthread_kill(w.thread, SIGUSR1) == 0);
    CHECK(fs_write(client, "hello", 5) == 5);
    finish(&w);
    CHECK(w.result == 5 && memcmp(w.buffer, "hello", 5) == 0);

    start(&w, server, 0);
    CHECK(fs_close(server) == 0);
    finish(&w);
    FAILS(w.result, EBADF);
    fs_close(client);

    connected(&client, &server);
    start(&w, server, 0);
    CHECK(fs_shutdown(client, SHUT_WR) == 0);
    finish(&w);
    CHECK(w.result == 0);
    FAILS(fs_write(client, "x", 1), EPIPE);
    fs_close(client);
    fs_close(server);

    start(&w, listener, 1);
    struct sockaddr_in there = address("10.0.0.2", 80);
    client = fs_socket(stacks[0], AF_INET, SOCK_STREAM, 0);
    CHECK(fs_connect(client, (struct sockaddr *)&there, sizeof there) == 0);
    finish(&w);
    CHECK(w.result >= 0);
    fs_close(client);
    fs_close((int)w.result);
}

static void time_outs(void) {
    int client, server;
    connected(&client, &server);
    struct timeval span = {.tv_usec = 20000};
    CHECK(fs_setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &span, sizeof span) == 0);
    uint64_t before = now(NULL);
    char byte;
    FAILS(fs_read(server, &byte, 1), EAGAIN);
    CHECK(now(NULL) - before >= 20000000);
    FAILS(fs_recv(server, &byte, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(fs_fcntl(server, F_SETFL, O_NONBLOCK) == 0);
    CHECK(fs_fcntl(server, F_GETFL, 0) & O_NONBLOCK);
    FAILS(fs_read(server, &byte, 1), EAGAIN);
    struct pollfd file = {.fd = server, .events = POLLIN};
    CHECK(fs_poll(&file, 1, 10) == 0);
    fs_close(client);
    fs_close(server);
}

static void sets(void) {
    int client, server;
    connected(&client, &server);
    int set = fs_epoll_create1(stacks[1], EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 77};
    CHECK(fs_epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0);
    FAILS(fs_epoll_ctl(set, EPOLL_CTL_ADD, server, &event), EEXIST);
    FAILS(fs_epoll_ctl(set, EPOLL_CTL_ADD, client, &event), EXDEV);
    int file = fs_stack_eventfd(stacks[1]);
    CHECK(fs_epoll_wait(set, &event, 1, 0) == 0);
    struct waiting w;
    start(&w, set, 2);
    CHECK(fs_write(client, "x", 1) == 1);
    finish(&w);
    CHECK(w.result == 1);
    struct pollfd both[] = {{.fd = file, .events = POLLIN}};
    CHECK(poll(both, 1, 0) == 1);
    close(file);
    fs_close(set);
    fs_close(client);
    fs_close(server);
}

static void options(void) {
    int client, server, value = 0;
    socklen_t len = sizeof value;
    connected(&client, &server);
    value = 10000;
    CHECK(fs_setsockopt(client, SOL_SOCKET, SO_SNDBUF, &value, len) == 0);
    CHECK(fs_getsockopt(client, SOL_SOCKET, SO_SNDBUF, &value, &len) == 0 && value == 20000);
    struct tcp_info info;
    len = sizeof info;
    CHECK(fs_getsockopt(client, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_mss > 500);
    CHECK(fs_write(client, "12345", 5) == 5);
    CHECK(fs_ioctl(server, FIONREAD, &value) == 0 && value == 5);
    FAILS(fs_setsockopt(client, SOL_SOCKET, SO_SNDBUF, NULL, 4), EFAULT);
    FAILS(fs_read(server, NULL, 5), EFAULT);
    FAILS(fs_bind(client, NULL, 16), EFAULT);
    FAILS(fs_recvmsg(server, NULL, 0), EFAULT);
    FAILS(fs_read(0, &value, 4), EBADF);
    FAILS(read(server, &value, 4), EBADF);
    FAILS(fs_socket(NULL, AF_INET, SOCK_STREAM, 0), EFAULT);
    fs_close(client);
    fs_close(server);

    char text[64];
    CHECK(fs_stack_set(stacks[0], "tcp_congestion_control", "reno") == 0);
    CHECK(fs_stack_get(stacks[0], "tcp_congestion_control", text, sizeof text) == 4);
    CHECK(strcmp(text, "reno") == 0);
    FAILS(fs_stack_set(stacks[0], "tcp_nonsense", "1"), EINVAL);
    CHECK(strstr(fs_last_error(), "tcp_nonsense") != NULL);
}

static void flags_and_queues(void) {
    int client, server, value, one = 1;
    socklen_t len = sizeof value;
    connected(&client, &server);
    CHECK(fs_write(client, "0123456789", 10) == 10);
    char text[64];
    CHECK(fs_recv(server, text, 10, MSG_PEEK | MSG_WAITALL) == 10);
    CHECK(fs_recv(server, text, 4, MSG_TRUNC) == 4);
    CHECK(fs_setsockopt(server, IPPROTO_TCP, 36 /* TCP_INQ */, &one, sizeof one) == 0);
    char control[64];
    struct iovec pieces[] = {{text, 2}, {text + 2, 2}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2, .msg_control = control,
                             .msg_controllen = sizeof control};
    CHECK(fs_recvmsg(server, &message, 0) == 4 && memcmp(text, "4567", 4) == 0);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(head != NULL && head->cmsg_level == IPPROTO_TCP && head->cmsg_type == 36);
    CHECK(*(int *)CMSG_DATA(head) == 2);

    /* Data that is written and not acknowledged. */
    while (fs_ioctl(client, SIOCOUTQ, &value) == 0 && value > 0) usleep(500);
    CHECK(value == 0);
    CHECK(fs_getsockopt(client, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
    unsigned memory[9];
    len = sizeof memory;
    CHECK(fs_getsockopt(client, SOL_SOCKET, 55 /* SO_MEMINFO */, memory, &len) == 0);
    CHECK(len == sizeof memory);
    fs_close(client);
    fs_close(server);
}

static void a_connection_opened_by_the_first_write(void) {
    struct sockaddr_in there = address("10.0.0.2", 80);
    int queue = 8;
    CHECK(fs_setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue) == 0);
    CHECK(fs_stack_set(stacks[1], "tcp_fastopen", "3") == 0);
    /* The first call has no cookie: it waits for the handshake, then sends. */
    for (int i = 0; i < 2; i++) {
        int client = fs_socket(stacks[0], AF_INET, SOCK_STREAM, 0);
        CHECK(fs_sendto(client, "early", 5, MSG_FASTOPEN, (struct sockaddr *)&there,
                        sizeof there) == 5);
        int server = fs_accept(listener, NULL, NULL);
        char text[8];
        CHECK(fs_recv(server, text, 5, MSG_WAITALL) == 5 && memcmp(text, "early", 5) == 0);
        fs_close(client);
        fs_close(server);
    }
}

/* Waits for a completion of MSG_ZEROCOPY and returns its ee_code. */
static int completion(int fd) {
    struct pollfd file = {.fd = fd};
    CHECK(fs_poll(&file, 1, 10000) == 1 && (file.revents & POLLERR));
    char control[128];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    CHECK(fs_recvmsg(fd, &message, MSG_ERRQUEUE) == 0);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(head != NULL);
    struct sock_extended_err *report = (struct sock_extended_err *)CMSG_DATA(head);
    CHECK(report->ee_origin == SO_EE_ORIGIN_ZEROCOPY);
    return report->ee_code;
}

static void lent_memory(void) {
    int client, server, one = 1;
    connected(&client, &server);
    CHECK(fs_setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
    static char lent[20000], got[20000];
    memset(lent, 'z', sizeof lent);
    ssize_t n = fs_send(client, lent, sizeof lent, MSG_ZEROCOPY);
    CHECK(n > 0);
    CHECK(fs_recv(server, got, (size_t)n, MSG_WAITALL) == n);
    CHECK(memcmp(lent, got, (size_t)n) == 0);
    CHECK(completion(client) == 0);
    memset(lent, 'y', sizeof lent);
    fs_close(client);
    fs_close(server);
}

/* Changes to memory after its completion must not reach the receiver. */
static void lent_memory_over_loopback(void) {
    struct sockaddr_in own = address("10.0.0.1", 81);
    int one = 1, listening = fs_socket(stacks[0], AF_INET, SOCK_STREAM, 0);
    CHECK(fs_bind(listening, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(fs_listen(listening, 1) == 0);
    int client = fs_socket(stacks[0], AF_INET, SOCK_STREAM, 0);
    CHECK(fs_connect(client, (struct sockaddr *)&own, sizeof own) == 0);
    int server = fs_accept(listening, NULL, NULL);
    CHECK(fs_setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
    static char got[60000];
    char *lent = malloc(sizeof got);
    memset(lent, 'z', sizeof got);
    ssize_t n = fs_send(client, lent, sizeof got, MSG_ZEROCOPY);
    CHECK(n > 0);
    CHECK(completion(client) == SO_EE_CODE_ZEROCOPY_COPIED);
    memset(lent, 'y', sizeof got);
    CHECK(fs_recv(server, got, (size_t)n, MSG_WAITALL) == n);
    for (ssize_t i = 0; i < n; i++) CHECK(got[i] == 'z');
    free(lent);
    fs_close(client);
    fs_close(server);
    fs_close(listening);
}

/* fs_close() ends a loan, although the written data is still delivered. */
static void lent_memory_of_a_closed_socket(void) {
    int client, server, one = 1, small = 1;
    connected(&client, &server);
    CHECK(fs_setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
    CHECK(fs_setsockopt(server, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    static char got[200000];
    char *lent = malloc(sizeof got);
    memset(lent, 'z', sizeof got);
    /* More than the receiver accepts without reading. */
    ssize_t n, all = 0;
    while ((n = fs_send(client, lent, 20000, MSG_ZEROCOPY | MSG_DONTWAIT)) > 0) all += n;
    CHECK(errno == EAGAIN && all <= (ssize_t)sizeof got);
    CHECK(fs_close(client) == 0);
    memset(lent, 'y', sizeof got);
    free(lent);
    CHECK(fs_recv(server, got, (size_t)all, MSG_WAITALL) == all);
    for (ssize_t i = 0; i < all; i++) CHECK(got[i] == 'z');
    fs_close(server);
}

static void datagrams(void) {
    struct sockaddr_in there = address("10.0.0.2", 53), from;
    socklen_t len = sizeof from;
    int client = fs_socket(stacks[0], AF_INET, SOCK_DGRAM, 0);
    int server = fs_socket(stacks[1], AF_INET, SOCK_DGRAM, 0);
    CHECK(fs_bind(server, (struct sockaddr *)&there, sizeof there) == 0);
    CHECK(fs_sendto(client, "who?", 4, 0, (struct sockaddr *)&there, sizeof there) == 4);
    char text[16];
    CHECK(fs_recvfrom(server, text, sizeof text, 0, (struct sockaddr *)&from, &len) == 4);
    CHECK(len == sizeof from && from.sin_addr.s_addr == address("10.0.0.1", 0).sin_addr.s_addr);
    struct iovec pieces[] = {{"no", 2}, {"body", 4}};
    struct msghdr message = {
        .msg_name = &from, .msg_namelen = len, .msg_iov = pieces, .msg_iovlen = 2};
    CHECK(fs_sendmsg(server, &message, 0) == 6);
    CHECK(fs_read(client, text, sizeof text) == 6 && memcmp(text, "nobody", 6) == 0);
    fs_close(client);
    fs_close(server);
}

static void descriptors_that_are_not_ours(void) {
    struct pollfd skipped = {.fd = -1, .events = POLLIN, .revents = POLLIN};
    CHECK(fs_poll(NULL, 0, 1) == 0);
    CHECK(fs_poll(&skipped, 1, 1) == 0 && skipped.revents == 0);
    struct pollfd files[3] = {{.fd = 0x40123456, .events = POLLIN}, {.fd = -1}, {.fd = 0}};
    CHECK(fs_poll(files, 3, -1) == 2);
    CHECK(files[0].revents == POLLNVAL && files[1].revents == 0 && files[2].revents == POLLNVAL);
    files[1] = (struct pollfd){.fd = listener, .events = POLLIN, .revents = POLLIN};
    CHECK(fs_poll(files, 2, -1) == 1);
    CHECK(files[0].revents == POLLNVAL && files[1].revents == 0);
    FAILS(fs_poll(files, (nfds_t)1 << 40, 0), EINVAL);
    FAILS(fs_poll(files, (nfds_t)-1, 0), EINVAL);
    FAILS(fs_poll(NULL, 1, 0), EFAULT);
    FAILS(fs_ioctl(listener, 0x12345678, (int *)1), ENOTTY);
}

static void buffers_that_overlap(void) {
    int client, server;
    connected(&client, &server);
    char text[] = "..........";
    struct iovec pieces[] = {{text, 4}, {text + 2, 4}};
    CHECK(fs_write(client, "12345678", 8) == 8);
    CHECK(fs_recv(server, text, 8, MSG_PEEK | MSG_WAITALL) == 8);
    memset(text, '.', 10);
    CHECK(fs_readv(server, pieces, 2) == 8);
    CHECK(strcmp(text, "125678....") == 0);
    memset(text, '.', 10);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2, .msg_control = text,
                             .msg_controllen = sizeof text};
    CHECK(fs_write(client, "1234", 4) == 4);
    CHECK(fs_recvmsg(server, &message, 0) == 4);
    CHECK(strcmp(text, "1234......") == 0 && message.msg_controllen == 0);
    fs_close(client);
    fs_close(server);
}

static void the_end(void) {
    struct waiting w;
    int client, server;
    connected(&client, &server);
    struct linger linger = {.l_onoff = 1, .l_linger = 10};
    CHECK(fs_setsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(fs_write(client, "last words", 10) == 10);
    CHECK(fs_close(client) == 0);
    char text[16];
    CHECK(fs_recv(server, text, 10, MSG_WAITALL) == 10);

    start(&w, listener, 1);
    fs_stack *gone = stacks[1];
    CHECK(fs_stack_destroy(gone) == 0);
    finish(&w);
    FAILS(w.result, ESHUTDOWN);
    FAILS(fs_read(server, text, 1), EBADF);
    FAILS(fs_stack_destroy(gone), EINVAL);
}

int main(void) {
    struct fs_callbacks callbacks[2];
    for (int i = 0; i < 2; i++) {
        callbacks[i] = (struct fs_callbacks){&stacks[1 - i], output, now};
        char settings[64];
        snprintf(settings, sizeof settings, "address=10.0.0.%d/24,seed=%d", i + 1, i);
        stacks[i] = fs_stack_create(settings, &callbacks[i]);
        CHECK(stacks[i] != NULL);
    }
    CHECK(fs_stack_create("mtu=nonsense", &callbacks[0]) == NULL && errno == EINVAL);
    CHECK(strstr(fs_last_error(), "nonsense") != NULL);
    CHECK(fs_stack_create(NULL, NULL) == NULL && errno == EFAULT);
    signal(SIGUSR1, on_signal);
    pthread_t ticker;
    CHECK(pthread_create(&ticker, NULL, tick, NULL) == 0);

    listener = fs_socket(stacks[1], AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = address("0.0.0.0", 80);
    CHECK(fs_bind(listener, (struct sockaddr *)&any, sizeof any) == 0);
    CHECK(fs_listen(listener, 8) == 0);
    calls_that_wait();
    time_outs();
    sets();
    options();
    flags_and_queues();
    a_connection_opened_by_the_first_write();
    lent_memory();
    lent_memory_over_loopback();
    lent_memory_of_a_closed_socket();
    datagrams();
    descriptors_that_are_not_ours();
    buffers_that_overlap();
    the_end();
    puts("done");
    return 0;
}
