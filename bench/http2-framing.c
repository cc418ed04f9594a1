/* Measures HTTP/2 with nghttp2 and without sockets, for bench/http2-framing. The client is that of
 * crates/http2/examples/framing.rs.
 *
 *     http2-framing STREAMS REQUESTS
 */
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_BYTES = 500, KEPT_AGAIN = 128 | 62 };

struct header {
    const char *name, *value;
};

/* The client's dynamic table after its first request, the newest entry first. */
static const struct header kept[] = {
    {":authority", "localhost:8443"},
    {"sec-ch-ua", "\"Chromium\";v=\"142\", \"Not_A Brand\";v=\"99\""},
    {"sec-ch-ua-mobile", "?0"},
    {"sec-ch-ua-platform", "\"Linux\""},
    {"user-agent",
     "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36"},
    {"accept", "text/css,*/*;q=0.1"},
    {"sec-fetch-site", "same-origin"},
    {"sec-fetch-mode", "no-cors"},
    {"sec-fetch-dest", "style"},
    {"accept-encoding", "gzip, deflate, br, zstd"},
    {"accept-language", "en-GB,en;q=0.9"},
    {"priority", "u=0"},
};
enum { KEPT = sizeof kept / sizeof *kept };

static const struct header response[] = {
    {":status", "200"},
    {"server", "headway"},
    {"date", "Sat, 28 Nov 2026 12:00:00 GMT"},
    {"content-type", "application/octet-stream"},
    {"content-length", "500"},
    {"last-modified", "Sat, 28 Nov 2026 10:00:00 GMT"},
    {"etag", "\"6929a1b0-1f4\""},
    {"accept-ranges", "bytes"},
};
enum { RESPONSE = sizeof response / sizeof *response };

static nghttp2_nv fields[RESPONSE];
static char body[BODY_BYTES];

/* The header of a request, as in HTTP/1.1; each stream has its own, as in a server. */
struct request {
    size_t used, sent;
    char head[2048];
};

static void die(const char *what) {
    fprintf(stderr, "http2-framing: %s\n", what);
    exit(1);
}

/* ---- the server ---------------------------------------------------------------------------------- */

static unsigned answered;

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    (void)user;
    struct request *request = malloc(sizeof *request);
    if (!request) die("no memory");
    request->used = request->sent = 0;
    return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, request);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags, void *user) {
    (void)flags, (void)user;
    struct request *request = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!request || request->used + name_bytes + value_bytes + 4 > sizeof request->head)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    char *at = request->head + request->used;
    memcpy(at, name, name_bytes);
    memcpy(at + name_bytes, ": ", 2);
    memcpy(at + name_bytes + 2, value, value_bytes);
    memcpy(at + name_bytes + 2 + value_bytes, "\r\n", 2);
    request->used += name_bytes + value_bytes + 4;
    return 0;
}

static ssize_t read_body(nghttp2_session *session, int32_t stream, uint8_t *buffer, size_t room,
                         uint32_t *flags, nghttp2_data_source *source, void *user) {
    (void)session, (void)stream, (void)user;
    struct request *request = source->ptr;
    size_t count = BODY_BYTES - request->sent;
    if (count > room) count = room;
    memcpy(buffer, body + request->sent, count);
    request->sent += count;
    if (request->sent == BODY_BYTES) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)count;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    (void)user;
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return 0;
    nghttp2_data_provider data = {.read_callback = read_body};
    data.source.ptr = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    answered++;
    return nghttp2_submit_response(session, frame->hd.stream_id, fields, RESPONSE, &data);
}

static int on_close(nghttp2_session *session, int32_t stream, uint32_t code, void *user) {
    (void)code, (void)user;
    free(nghttp2_session_get_stream_user_data(session, stream));
    return 0;
}

/* Processes bytes of the client and writes the frames for it. Returns the number of bytes written. */
static size_t exchange(nghttp2_session *session, const uint8_t *bytes, size_t count, uint8_t *output,
                       size_t room) {
    if (nghttp2_session_mem_recv(session, bytes, count) != (ssize_t)count)
        die("the client's bytes are an error");
    size_t sent = 0;
    for (;;) {
        const uint8_t *part;
        ssize_t length = nghttp2_session_mem_send(session, &part);
        if (length < 0) die("nghttp2_session_mem_send failed");
        if (length == 0) return sent;
        if (sent + (size_t)length > room) die("the output is too long");
        /* In one buffer, as one system call or one TLS record needs it. */
        memcpy(output + sent, part, (size_t)length);
        sent += (size_t)length;
    }
}

/* ---- the client ---------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *at, const void *bytes, size_t count) {
    memcpy(at, bytes, count);
    return at + count;
}

static uint8_t *put_frame(uint8_t *at, uint8_t kind, uint8_t flags, uint32_t stream, const void *payload,
                          size_t count) {
    uint8_t header[9] = {
        (uint8_t)(count >> 16),  (uint8_t)(count >> 8),   (uint8_t)count,         kind,           flags,
        (uint8_t)(stream >> 24), (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    return put(put(at, header, 9), payload, count);
}

static uint8_t *put_text(uint8_t *at, const char *text) {
    size_t count = strlen(text);
    if (count < 127) {
        *at++ = (uint8_t)count;
    } else {
        *at++ = 127;
        *at++ = (uint8_t)(count - 127);
    }
    return put(at, text, count);
}

int main(int argc, char **argv) {
    unsigned streams = argc == 3 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    unsigned requests = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    if (!streams || !requests) die("http2-framing STREAMS REQUESTS");
    for (int at = 0; at < RESPONSE; at++)
        fields[at] = (nghttp2_nv){(uint8_t *)response[at].name, (uint8_t *)response[at].value,
                                  strlen(response[at].name), strlen(response[at].value),
                                  NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
    memset(body, 'x', sizeof body);

    nghttp2_session_callbacks *callbacks;
    nghttp2_session *session;
    if (nghttp2_session_callbacks_new(&callbacks)) die("no memory");
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    if (nghttp2_session_server_new(&session, callbacks, NULL)) die("no memory");
    nghttp2_settings_entry limit = {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 128};
    if (nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, &limit, 1)) die("nghttp2_submit_settings failed");

    size_t room = streams * 2048 + 4096;
    uint8_t *input = malloc(room), *output = malloc(room);
    if (!input || !output) die("no memory");
    static const uint8_t window[] = {0, 4, 0, 0x60, 0, 0};
    uint8_t *at = put(input, NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
    at = put_frame(at, NGHTTP2_SETTINGS, 0, 0, window, sizeof window);
    at = put_frame(at, NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
    exchange(session, input, (size_t)(at - input), output, room);

    unsigned long long sent = 0;
    uint32_t stream = 1;
    unsigned asked = 0;
    while (asked < requests) {
        uint32_t more = streams * BODY_BYTES;
        uint8_t update[] = {(uint8_t)(more >> 24), (uint8_t)(more >> 16), (uint8_t)(more >> 8),
                            (uint8_t)more};
        at = put_frame(input, NGHTTP2_WINDOW_UPDATE, 0, 0, update, sizeof update);
        for (unsigned number = 0; number < streams; number++, asked++, stream += 2) {
            uint8_t block[2048], *end = block;
            char path[32];
            *end++ = 0x82, *end++ = 0x87, *end++ = 4;
            snprintf(path, sizeof path, "/asset-%02u.css", asked % 100);
            end = put_text(end, path);
            for (int which = 0; which < KEPT; which++) {
                if (asked) {
                    *end++ = (uint8_t)(KEPT_AGAIN + KEPT - 1 - which);
                } else {
                    *end++ = 64;
                    end = put_text(put_text(end, kept[which].name), kept[which].value);
                }
            }
            at = put_frame(at, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_STREAM | NGHTTP2_FLAG_END_HEADERS, stream,
                           block, (size_t)(end - block));
        }
        sent += exchange(session, input, (size_t)(at - input), output, room);
        if (answered != asked) die("not all requests were answered");
    }
    printf("%llu\n", sent / answered);
    nghttp2_session_del(session);
    nghttp2_session_callbacks_del(callbacks);
    free(input);
    free(output);
    return 0;
}
