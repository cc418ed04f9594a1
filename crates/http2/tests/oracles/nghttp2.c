/* What nghttp2 makes of a client's bytes. oracles.rs describes the input and the output.
 *
 * The fuzz target http2_oracle calls oracle_run and oracle_hpack. The tests run this file as a program, with
 * -DORACLE_MAIN: cases on standard input, outcomes on standard output.
 */
#include <nghttp2/nghttp2.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEED, ANSWER };
enum { STREAM_WINDOW = 64 << 10, CONNECTION_WINDOW = 256 << 10, STREAMS_MAX = 100 };

struct text {
    char *bytes;
    size_t used, room;
};

struct oracle {
    /* What was said, and the headers of a block so far. */
    struct text out, headers;
    /* Bytes of data to give back to the client's windows. */
    struct {
        int32_t stream;
        size_t bytes;
    } consumed[4096];
    size_t consumed_count;
    int has_failed;
};

static void die(const char *what) {
    fprintf(stderr, "nghttp2 oracle: %s\n", what);
    exit(1);
}

static void append(struct text *text, const void *bytes, size_t count) {
    if (text->used + count + 1 > text->room) {
        text->room = 2 * (text->used + count + 1);
        text->bytes = realloc(text->bytes, text->room);
        if (!text->bytes) die("no memory");
    }
    memcpy(text->bytes + text->used, bytes, count);
    text->used += count;
    text->bytes[text->used] = 0;
}

static void add(struct text *text, const char *format, ...) {
    char line[128];
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    append(text, line, (size_t)count);
}

static void add_hex(struct text *text, const uint8_t *bytes, size_t count) {
    static const char digits[] = "0123456789abcdef";
    for (size_t at = 0; at < count; at++) {
        char two[2] = {digits[bytes[at] >> 4], digits[bytes[at] & 15]};
        append(text, two, 2);
    }
}

static void add_header(struct text *text, const uint8_t *name, size_t name_bytes, const uint8_t *value,
                       size_t value_bytes) {
    append(text, " ", 1);
    add_hex(text, name, name_bytes);
    append(text, ":", 1);
    add_hex(text, value, value_bytes);
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct oracle *oracle = user;
    (void)session, (void)frame;
    oracle->headers.used = 0;
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags, void *user) {
    struct oracle *oracle = user;
    (void)session, (void)frame, (void)flags;
    add_header(&oracle->headers, name, name_bytes, value, value_bytes);
    return 0;
}

/* nghttp2 leaves invalid headers out, unless its user wants an error as RFC 9113, 8.1.1 does. */
static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                             size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                             void *user) {
    (void)name, (void)name_bytes, (void)value, (void)value_bytes, (void)flags, (void)user;
    if (nghttp2_submit_rst_stream(session, 0, frame->hd.stream_id, NGHTTP2_PROTOCOL_ERROR)) die("no reset");
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data, size_t bytes,
                   void *user) {
    struct oracle *oracle = user;
    (void)session, (void)flags;
    add(&oracle->out, "data %d ", stream);
    add_hex(&oracle->out, data, bytes);
    append(&oracle->out, "\n", 1);
    if (oracle->consumed_count == sizeof oracle->consumed / sizeof *oracle->consumed) die("too much data");
    oracle->consumed[oracle->consumed_count].stream = stream;
    oracle->consumed[oracle->consumed_count++].bytes = bytes;
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct oracle *oracle = user;
    (void)session;
    int is_last = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (frame->hd.type == NGHTTP2_HEADERS) {
        const char *kind = frame->headers.cat == NGHTTP2_HCAT_REQUEST ? "request" : "trailers";
        add(&oracle->out, "%s %d", kind, frame->hd.stream_id);
        if (oracle->headers.used) append(&oracle->out, oracle->headers.bytes, oracle->headers.used);
        append(&oracle->out, "\n", 1);
    }
    if ((frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) && is_last)
        add(&oracle->out, "end %d\n", frame->hd.stream_id);
    return 0;
}

/* What nghttp2 sends: only answers and errors. */
static int on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct oracle *oracle = user;
    (void)session;
    switch (frame->hd.type) {
    case NGHTTP2_RST_STREAM:
        add(&oracle->out, "reset %d %u\n", frame->hd.stream_id, frame->rst_stream.error_code);
        break;
    case NGHTTP2_GOAWAY:
        add(&oracle->out, "goaway %u\n", frame->goaway.error_code);
        oracle->has_failed = 1;
        break;
    case NGHTTP2_PING:
        add(&oracle->out, "pong ");
        add_hex(&oracle->out, frame->ping.opaque_data, 8);
        append(&oracle->out, "\n", 1);
        break;
    case NGHTTP2_SETTINGS:
        if (frame->hd.flags & NGHTTP2_FLAG_ACK) add(&oracle->out, "ack\n");
        break;
    default:
        break;
    }
    return 0;
}

static void flush(nghttp2_session *session) {
    const uint8_t *bytes;
    ssize_t count;
    while ((count = nghttp2_session_mem_send(session, &bytes)) > 0) {
    }
    if (count < 0) die(nghttp2_strerror((int)count));
}

static nghttp2_session *server(struct oracle *oracle) {
    nghttp2_session *session;
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    if (nghttp2_session_callbacks_new(&callbacks) || nghttp2_option_new(&option)) die("no memory");
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback(callbacks, on_invalid_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
    nghttp2_option_set_no_auto_window_update(option, 1);
    if (nghttp2_session_server_new2(&session, callbacks, oracle, option)) die("no session");
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, STREAMS_MAX},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        {NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1},
    };
    if (nghttp2_submit_settings(session, 0, settings, sizeof settings / sizeof *settings)) die("no settings");
    flush(session);
    if (nghttp2_session_set_local_window_size(session, 0, 0, CONNECTION_WINDOW)) die("no window");
    return session;
}

/* A response without a body. The client is asked to stop sending. */
static void answer(nghttp2_session *session, int32_t stream) {
    static uint8_t name[] = ":status", value[] = "200";
    const nghttp2_nv status = {name, value, sizeof name - 1, sizeof value - 1, 0};
    int is_received = nghttp2_session_get_stream_remote_close(session, stream);
    if (is_received < 0) return;
    if (nghttp2_submit_response(session, stream, &status, 1, NULL)) return;
    flush(session);
    if (!is_received) nghttp2_submit_rst_stream(session, 0, stream, NGHTTP2_NO_ERROR);
}

static uint32_t number(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void step(struct oracle *oracle, nghttp2_session *session, int kind, const uint8_t *bytes,
                 size_t count) {
    if (!oracle->has_failed) {
        if (kind == ANSWER && count == 4) answer(session, (int32_t)number(bytes));
        ssize_t done = kind == FEED ? nghttp2_session_mem_recv(session, bytes, count) : 0;
        if (done < 0) add(&oracle->out, "failed %d\n", (int)done);
    }
    for (size_t at = 0; at < oracle->consumed_count; at++)
        nghttp2_session_consume(session, oracle->consumed[at].stream, oracle->consumed[at].bytes);
    oracle->consumed_count = 0;
    flush(session);
    add(&oracle->out, "step\n");
}

/* Runs the case at the front of the input. Returns how long it is; the caller frees the outcome. */
size_t oracle_run(const uint8_t *input, size_t bytes, char **outcome) {
    struct oracle *oracle = calloc(1, sizeof *oracle);
    if (!oracle) die("no memory");
    nghttp2_session *session = server(oracle);
    if (bytes < 4) die("no case");
    uint32_t steps = number(input);
    size_t at = 4;
    while (steps--) {
        if (at + 5 > bytes || number(input + at + 1) > bytes - at - 5) die("half a case");
        uint32_t count = number(input + at + 1);
        step(oracle, session, input[at], input + at + 5, count);
        at += 5 + count;
    }
    nghttp2_session_del(session);
    add(&oracle->out, "case\n");
    *outcome = oracle->out.bytes;
    free(oracle->headers.bytes);
    free(oracle);
    return at;
}

/* Decodes a header block. Returns its headers, or nothing if it is invalid; the caller frees them. */
char *oracle_hpack(nghttp2_hd_inflater *inflater, const uint8_t *block, size_t bytes) {
    struct text out = {0};
    append(&out, "", 0);
    for (;;) {
        nghttp2_nv header;
        int flags = 0;
        ssize_t count = nghttp2_hd_inflate_hd2(inflater, &header, &flags, block, bytes, 1);
        if (count < 0) {
            free(out.bytes);
            return NULL;
        }
        block += count, bytes -= (size_t)count;
        if (flags & NGHTTP2_HD_INFLATE_EMIT)
            add_header(&out, header.name, header.namelen, header.value, header.valuelen);
        if (flags & NGHTTP2_HD_INFLATE_FINAL) break;
    }
    nghttp2_hd_inflate_end_headers(inflater);
    return out.bytes;
}

#ifdef ORACLE_MAIN
int main(void) {
    struct text input = {0};
    char buffer[1 << 16];
    size_t count;
    while ((count = fread(buffer, 1, sizeof buffer, stdin)) > 0) append(&input, buffer, count);
    for (size_t at = 0; at < input.used;) {
        char *outcome;
        at += oracle_run((uint8_t *)input.bytes + at, input.used - at, &outcome);
        fputs(outcome, stdout);
        free(outcome);
    }
    return 0;
}
#endif
