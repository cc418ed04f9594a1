/*
 * headway_direct.c: see headway_direct.h.
 *
 * The client's socket is shared with the server, flags included. So nothing here changes them: every write
 * asks not to wait (MSG_DONTWAIT) and waits by poll. A response that is sent back goes over a socket of the
 * program's own, which may wait.
 */
#define _GNU_SOURCE
#include "headway_direct.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    VERSION = 1,
    MESSAGE_BYTES_MAX = 128 * 1024,
    KEEP = 1,
    HEAD_ONLY = 2,
    OLD = 4,
    IN_FILE = 8,
    BACK = 16,
    REQUEST_BYTES = 20,
    OUTPUT_BYTES = 6,
    OUTPUT_BYTES_MAX = 64 * 1024 - OUTPUT_BYTES,
};

struct headway_direct {
    int server;
    int client;
    int file;
    int open;    /* a request is under way */
    int flags;   /* of the request; KEEP is taken away when the response does not allow it */
    int status;  /* of the response, once it has begun */
    int chunked; /* its body goes out in chunks */
    int broken;  /* the client has gone */
    uint32_t id;
    uint64_t body_bytes;
    uint64_t left;    /* of the length that was promised */
    uint64_t written; /* of the response's body */
    const char *variables;
    size_t variables_bytes;
    const char *body;
    size_t body_here;
    char message[MESSAGE_BYTES_MAX + 1];
};

static uint64_t number(const char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | (unsigned char)at[i];
    }
    return value;
}

static void put(char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        at[i] = (char)(value >> (8 * i));
    }
}

static int say(struct headway_direct *server, const char *message, size_t size) {
    ssize_t sent;
    do {
        sent = send(server->server, message, size, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -1 : 0;
}

struct headway_direct *headway_direct_open(int descriptor) {
    struct headway_direct *server = calloc(1, sizeof *server);
    const char ready[2] = {VERSION, (char)129};
    if (!server) {
        return NULL;
    }
    server->server = descriptor;
    server->client = server->file = -1;
    if (say(server, ready, sizeof ready) < 0) {
        free(server);
        return NULL;
    }
    return server;
}

/* All of it, for the server to pass on; it waits while the server takes nothing. */
static int send_back(struct headway_direct *server, const char *bytes, size_t size) {
    char head[OUTPUT_BYTES] = {VERSION, (char)131};
    put(head + 2, server->id, 4);
    while (size > 0 && !server->broken) {
        size_t part = size < OUTPUT_BYTES_MAX ? size : OUTPUT_BYTES_MAX;
        struct iovec parts[2] = {{head, sizeof head}, {(char *)bytes, part}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        if (sendmsg(server->server, &message, MSG_NOSIGNAL) >= 0) {
            bytes += part;
            size -= part;
        } else if (errno != EINTR) {
            server->broken = 1;
        }
    }
    return server->broken ? -1 : 0;
}

/* All of it, however often the socket is full. */
static int send_all(struct headway_direct *server, const char *bytes, size_t size) {
    if (server->flags & BACK) {
        return send_back(server, bytes, size);
    }
    while (size > 0 && !server->broken) {
        ssize_t sent = send(server->client, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            struct pollfd room = {.fd = server->client, .events = POLLOUT};
            poll(&room, 1, -1);
        } else if (errno != EINTR) {
            server->broken = 1;
        }
    }
    return server->broken ? -1 : 0;
}

static const char *phrase(int status) {
    switch (status) {
    case 200:
        return "OK";
    case 201:
        return "Created";
    case 204:
        return "No Content";
    case 301:
        return "Moved Permanently";
    case 302:
        return "Found";
    case 303:
        return "See Other";
    case 304:
        return "Not Modified";
    case 400:
        return "Bad Request";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 500:
        return "Internal Server Error";
    case 503:
        return "Service Unavailable";
    default:
        return "";
    }
}

/* Whole lines, none of them empty, each with a name: what else it were would be taken for the body, or for
 * another field than the program meant. */
static int are_fields(const char *lines) {
    while (*lines) {
        size_t length = strcspn(lines, "\r\n"), name = strcspn(lines, ":");
        if (name == 0 || *lines == ' ' || *lines == '\t' || name >= length ||
            strncmp(lines + length, "\r\n", 2) != 0) {
            return 0;
        }
        lines += length + 2;
    }
    return 1;
}

int headway_direct_begin(struct headway_direct *server, int status, const char *fields, uint64_t length) {
    int bodiless = status == 204 || status == 304;
    int known = length != UINT64_MAX;
    int back = server->flags & BACK;
    char date[40], framing[80] = "";
    char *head;
    time_t now = time(NULL);
    struct tm utc;
    if (!fields) fields = "";
    if (server->status || status < 200 || status > 599 || !are_fields(fields)) {
        errno = EINVAL;
        return -1;
    }
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    server->chunked = !known && !bodiless && !back && !(server->flags & OLD);
    server->left = bodiless ? 0 : length;
    if (!known && !bodiless && (server->flags & OLD)) {
        server->flags &= ~KEEP;
    }
    if (server->chunked) {
        snprintf(framing, sizeof framing, "Transfer-Encoding: chunked\r\n");
    } else if (known && !bodiless) {
        snprintf(framing, sizeof framing, "Content-Length: %" PRIu64 "\r\n", length);
    }
    /* What is about the connection is the server's to say where it passes the response on. */
    int size = back ? asprintf(&head, "Status: %d %s\r\n%s%s\r\n", status, phrase(status), fields, framing)
                    : asprintf(&head, "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s%s\r\n", status, phrase(status),
                               date, fields, framing,
                               !(server->flags & KEEP) ? "Connection: close\r\n"
                               : (server->flags & OLD) ? "Connection: keep-alive\r\n"
                                                       : "");
    if (size < 0) {
        errno = ENOMEM;
        return -1;
    }
    server->status = status;
    int sent = send_all(server, head, (size_t)size);
    free(head);
    return sent;
}

int headway_direct_write(struct headway_direct *server, const void *body, size_t size) {
    char frame[24];
    if (!server->status || (!server->chunked && server->left != UINT64_MAX && size > server->left)) {
        errno = EINVAL;
        return -1;
    }
    if (!server->chunked && server->left != UINT64_MAX) {
        server->left -= size;
    }
    if (size == 0 || (server->flags & HEAD_ONLY)) {
        return 0;
    }
    server->written += size;
    if (!server->chunked) {
        return send_all(server, body, size);
    }
    int length = snprintf(frame, sizeof frame, "%zx\r\n", size);
    if (send_all(server, frame, (size_t)length) < 0 || send_all(server, body, size) < 0) {
        return -1;
    }
    return send_all(server, "\r\n", 2);
}

int headway_direct_response(struct headway_direct *server, int status, const char *fields, const void *body,
                            size_t size) {
    if (headway_direct_begin(server, status, fields, size) < 0) {
        return -1;
    }
    return headway_direct_write(server, body, size);
}

/* Ends the response and notifies the server. */
static int finish(struct headway_direct *server) {
    static const char none[] = "The program gave no response.\n";
    char done[18] = {VERSION, (char)130};
    int head_only = server->flags & HEAD_ONLY;
    if (!server->open) {
        return 0;
    }
    if (!server->status) {
        headway_direct_response(server, 500, "Content-Type: text/plain\r\n", none, sizeof none - 1);
    }
    if (server->chunked && !head_only) {
        send_all(server, "0\r\n\r\n", 5);
    }
    int unbound = (server->flags & BACK) && server->left == UINT64_MAX;
    int complete = server->chunked || head_only || unbound || server->left == 0;
    put(done + 2, (server->flags & KEEP) && complete && !server->broken ? KEEP : 0, 2);
    put(done + 4, server->id, 4);
    put(done + 8, (uint64_t)server->status, 2);
    put(done + 10, server->written, 8);
    if (server->client >= 0) {
        close(server->client);
    }
    if (server->file >= 0) {
        close(server->file);
    }
    server->client = server->file = -1;
    server->open = 0;
    return say(server, done, sizeof done);
}

/* The next message with its descriptors; its length. */
static ssize_t receive(struct headway_direct *server, int descriptors[2]) {
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {server->message, MESSAGE_BYTES_MAX};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes};
    ssize_t size;
    do {
        message.msg_controllen = sizeof control.bytes;
        size = recvmsg(server->server, &message, MSG_CMSG_CLOEXEC);
    } while (size < 0 && errno == EINTR);
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); size > 0 && one; one = CMSG_NXTHDR(&message, one)) {
        if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS) {
            memcpy(descriptors, CMSG_DATA(one), one->cmsg_len - CMSG_LEN(0));
        }
    }
    return size;
}

int headway_direct_next(struct headway_direct *server) {
    int descriptors[2] = {-1, -1};
    if (finish(server) < 0) {
        return errno == EPIPE ? 0 : -1;
    }
    ssize_t size = receive(server, descriptors);
    if (size <= 0) {
        return (int)size;
    }
    const char *message = server->message;
    size_t variables = size >= REQUEST_BYTES ? (size_t)number(message + 16, 4) : 0;
    server->flags = size >= REQUEST_BYTES ? (int)number(message + 2, 2) : 0;
    server->client = server->flags & BACK ? -1 : descriptors[0];
    server->file = server->flags & BACK ? descriptors[0] : descriptors[1];
    if (size < REQUEST_BYTES || message[0] != VERSION || message[1] != 1 ||
        (!(server->flags & BACK) && descriptors[0] < 0) || variables > (size_t)size - REQUEST_BYTES) {
        errno = EPROTO;
        return -1;
    }
    server->id = (uint32_t)number(message + 4, 4);
    server->body_bytes = number(message + 8, 8);
    server->variables = message + REQUEST_BYTES;
    server->variables_bytes = variables;
    server->body = server->variables + variables;
    server->body_here = (size_t)size - REQUEST_BYTES - variables;
    server->message[size] = 0;
    server->status = server->chunked = server->broken = 0;
    server->written = 0;
    server->left = 0;
    server->open = 1;
    return 1;
}

const char *headway_direct_variable(const struct headway_direct *server, const char *name) {
    size_t length = strlen(name);
    const char *end = server->variables + server->variables_bytes;
    for (const char *one = server->variables; one < end; one += strlen(one) + 1) {
        if (!strncmp(one, name, length) && one[length] == '=') {
            return one + length + 1;
        }
    }
    return "";
}

uint64_t headway_direct_body_bytes(const struct headway_direct *server) {
    return server->body_bytes;
}

ssize_t headway_direct_read(struct headway_direct *server, void *buffer, size_t size) {
    if (server->file >= 0) {
        return read(server->file, buffer, size);
    }
    size = size < server->body_here ? size : server->body_here;
    memcpy(buffer, server->body, size);
    server->body += size;
    server->body_here -= size;
    return (ssize_t)size;
}

void headway_direct_close(struct headway_direct *server) {
    if (server) {
        finish(server);
        free(server);
    }
}
