/*
 * Fetches a page over a userspace stack:
 *
 *     cc -o fetch fetch.c -lfullsend
 *     sudo ./fetch tun=fs0,address=10.9.0.2/24,kernel_address=10.9.0.1/24 10.9.0.1 8000 /index.html
 *
 * for example from `python3 -m http.server`.
 */
#define _GNU_SOURCE /* memmem */
#include <arpa/inet.h>
#include <fullsend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s SETTINGS ADDRESS PORT PATH\n", argv[0]);
        return 2;
    }
    fs_stack *stack = fs_stack_create(argv[1], NULL);
    if (stack == NULL) {
        fprintf(stderr, "%s: %s\n", argv[0], fs_last_error());
        return 1;
    }

    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    if (inet_pton(AF_INET, argv[2], &server.sin_addr) != 1) {
        fprintf(stderr, "%s: %s is not an IPv4 address\n", argv[0], argv[2]);
        return 2;
    }
    int fd = fs_socket(stack, AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    /* Do not wait forever. */
    struct timeval patience = {.tv_sec = 10};
    if (fs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0)
        fail("SO_RCVTIMEO");
    if (fs_connect(fd, (struct sockaddr *)&server, sizeof server) < 0) fail("connect");

    char request[1024];
    int len = snprintf(request, sizeof request,
                       "GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n", argv[4], argv[2]);
    if (len < 0 || (size_t)len >= sizeof request) {
        fprintf(stderr, "%s: the path is too long\n", argv[0]);
        return 2;
    }
    if (fs_write(fd, request, (size_t)len) != len) fail("write");

    /* The header goes to standard error, the page to standard output. */
    static char buffer[65536];
    size_t have = 0;
    int in_head = 1;
    ssize_t got;
    while ((got = fs_read(fd, buffer + have, sizeof buffer - have)) > 0) {
        have += (size_t)got;
        char *page = buffer;
        if (in_head) {
            char *end = memmem(buffer, have, "\r\n\r\n", 4);
            if (end == NULL) {
                if (have == sizeof buffer) break;
                continue;
            }
            in_head = 0;
            page = end + 4;
            fwrite(buffer, 1, (size_t)(page - buffer), stderr);
        }
        fwrite(page, 1, have - (size_t)(page - buffer), stdout);
        have = 0;
    }
    if (got < 0) fail("read");
    fs_close(fd);
    /* The server still gets the end of the connection. */
    if (fs_stack_shutdown(stack, 1000) < 0) fs_stack_destroy(stack);
    if (in_head) {
        fprintf(stderr, "%s: that is no answer of HTTP\n", argv[0]);
        return 1;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
