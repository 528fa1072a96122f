/*
 * A small web server on a userspace stack: one thread, an epoll set, and the program's own poll loop,
 * which also watches standard input: its end stops the server.
 *
 *     cc -o serve serve.c -lfullsend
 *     sudo ./serve tun=fs0,address=10.9.0.2/24,kernel_address=10.9.0.1/24 8000 100000
 *     curl http://10.9.0.2:8000/
 *
 * The last argument is the length of each answer in bytes.
 */
#include <errno.h>
#include <fullsend.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CLIENTS = 64 };

struct client {
    int fd; /* 0 when free */
    int answering;
    char request[4096];
    size_t have;
    size_t sent;
};

static struct client clients[MAX_CLIENTS];
static char *answer;
static size_t answer_len;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void make_answer(size_t body) {
    char head[128];
    int len = snprintf(head, sizeof head,
                       "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n",
                       body);
    answer_len = (size_t)len + body;
    answer = malloc(answer_len);
    if (answer == NULL) fail("malloc");
    memcpy(answer, head, (size_t)len);
    for (size_t i = 0; i < body; i++)
        answer[(size_t)len + i] = i % 64 == 63 ? '\n' : (char)('a' + i % 26);
}

static void accept_all(int epoll, int listener) {
    int fd;
    while ((fd = fs_accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct client *client = clients;
        while (client < clients + MAX_CLIENTS && client->fd != 0) client++;
        if (client == clients + MAX_CLIENTS) {
            fs_close(fd);
            continue;
        }
        memset(client, 0, sizeof *client);
        client->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
        if (fs_epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
    }
    if (errno != EAGAIN) fail("accept");
}

/* Continues with one client. Returns 0 when it is finished. */
static int go_on(int epoll, struct client *client) {
    while (!client->answering) {
        size_t room = sizeof client->request - client->have;
        ssize_t got = fs_read(client->fd, client->request + client->have, room);
        if (got <= 0) return got < 0 && errno == EAGAIN;
        client->have += (size_t)got;
        if (client->have >= 4 &&
            memcmp(client->request + client->have - 4, "\r\n\r\n", 4) == 0) {
            client->answering = 1;
            struct epoll_event event = {.events = EPOLLOUT, .data.ptr = client};
            if (fs_epoll_ctl(epoll, EPOLL_CTL_MOD, client->fd, &event) < 0) fail("epoll_ctl");
        }
    }
    while (client->sent < answer_len) {
        ssize_t n = fs_write(client->fd, answer + client->sent, answer_len - client->sent);
        if (n < 0) return errno == EAGAIN;
        client->sent += (size_t)n;
    }
    return 0;
}

static void serve(int epoll, int listener) {
    struct epoll_event events[16];
    int n;
    while ((n = fs_epoll_wait(epoll, events, 16, 0)) > 0) {
        for (int i = 0; i < n; i++) {
            struct client *client = events[i].data.ptr;
            if (client == NULL) {
                accept_all(epoll, listener);
            } else if (!go_on(epoll, client)) {
                fs_close(client->fd);
                client->fd = 0;
            }
        }
    }
    if (n < 0) fail("epoll_wait");
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s SETTINGS PORT BYTES\n", argv[0]);
        return 2;
    }
    fs_stack *stack = fs_stack_create(argv[1], NULL);
    if (stack == NULL) {
        fprintf(stderr, "%s: %s\n", argv[0], fs_last_error());
        return 1;
    }
    make_answer((size_t)atol(argv[3]));

    int listener = fs_socket(stack, AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[2]))};
    if (listener < 0) fail("socket");
    if (fs_bind(listener, (struct sockaddr *)&any, sizeof any) < 0) fail("bind");
    if (fs_listen(listener, 64) < 0) fail("listen");
    int epoll = fs_epoll_create1(stack, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (fs_epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0) fail("epoll_ctl");

    struct pollfd files[] = {
        {.fd = fs_stack_eventfd(stack), .events = POLLIN},
        {.fd = STDIN_FILENO, .events = POLLIN},
    };
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        serve(epoll, listener);
        if (poll(files, 2, -1) < 0 && errno != EINTR) fail("poll");
        uint64_t count;
        char byte;
        if (files[0].revents && read(files[0].fd, &count, sizeof count) < 0) fail("eventfd");
        if (files[1].revents && read(STDIN_FILENO, &byte, 1) <= 0) break;
    }
    /* The clients that are connected still get what has been written. */
    if (fs_stack_shutdown(stack, 5000) < 0) fs_stack_destroy(stack);
    return 0;
}
