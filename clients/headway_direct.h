/*
 * headway_direct.h: programs that answer requests of `headway serve` and stay.
 *
 * A program of a location with direct = ["program"] is started once and answers one request after the other.
 * With each it is given the client's socket: it writes the whole response there and says that it is done.
 * With research.pipe of `headway-lab serve` the same program sends its responses back, and the server passes
 * them on. The protocol is in docs/research/src/direct-protocol.md. One thread may use it; a program with
 * more work starts more processes (concurrency).
 *
 *     struct headway_direct *server = headway_direct_open(0);
 *     while (headway_direct_next(server) > 0) {
 *         const char *query = headway_direct_variable(server, "QUERY_STRING");
 *         headway_direct_response(server, 200, "Content-Type: text/plain\r\n", query, strlen(query));
 *     }
 *     headway_direct_close(server);
 */
#ifndef HEADWAY_DIRECT_H
#define HEADWAY_DIRECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct headway_direct;

/* Begins to answer the server at the other end of a descriptor, which is 0 for a program that it has started.
 * NULL with errno when that is no such server, or for want of memory. */
struct headway_direct *headway_direct_open(int descriptor);

/* Ends the request before and waits for the next one: 1 when there is one, 0 when the server is gone, -1 with
 * errno. */
int headway_direct_next(struct headway_direct *server);

/* A variable of the request, as CGI programs find it in their environment; "" if there is none. */
const char *headway_direct_variable(const struct headway_direct *server, const char *name);

/* The length of the request's body, and its next bytes: 0 at its end, -1 with errno. */
uint64_t headway_direct_body_bytes(const struct headway_direct *server);
ssize_t headway_direct_read(struct headway_direct *server, void *buffer, size_t size);

/* Writes a whole response. Fields are lines that end in CR LF; "" for none; what is no such line is EINVAL,
 * and nothing is written. A value from another source must not contain CR LF: what follows would be a field
 * of its own, and no longer yours to judge. -1 with errno when the client has gone, too. */
int headway_direct_response(struct headway_direct *server, int status, const char *fields, const void *body,
                            size_t size);

/* Writes a response's head, then its body in pieces. A length of UINT64_MAX is one that is not known: the
 * body goes out in chunks then, or ends with the connection. */
int headway_direct_begin(struct headway_direct *server, int status, const char *fields, uint64_t length);
int headway_direct_write(struct headway_direct *server, const void *body, size_t size);

/* Lets the server go. */
void headway_direct_close(struct headway_direct *server);

#ifdef __cplusplus
}
#endif

#endif
