/*
 * A server on libuv which serves the metrics of its own event loop. Argument: a port of 127.0.0.1, or 0 for
 * any.
 *
 *   cc server.c -o server -luv -ldebox
 *   ./server 8000 &
 *   curl -s http://127.0.0.1:8000/slow
 *   curl -s http://127.0.0.1:8000/metrics | grep loop_blocked
 *
 * The handler of /slow makes a system call that blocks, and all other requests wait. libuv calls prepare
 * handles before it waits for events. It has nothing to call right after the wait, so each callback begins
 * the turn.
 */
#include <arpa/inet.h>
#include <debox.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#define SLEEP_US 200000
#define PERIOD_MS 20
#define METRICS_MAX 65536

static const debox_loop *watch;
static uint64_t expected_ns;
static int in_turn;

struct client {
    uv_tcp_t handle;
    uv_write_t write;
    size_t used;
    char request[4096];
    char response[METRICS_MAX + 256];
};

/* First of all in each callback. */
static void begin_turn(void) {
    if (!in_turn) debox_turn_begin(watch);
    in_turn = 1;
}

static void end_turn(uv_prepare_t *handle) {
    (void)handle;
    if (in_turn) debox_turn_end(watch);
    in_turn = 0;
}

/* How late this timer runs is the lag. */
static void measure_lag(uv_timer_t *timer) {
    uint64_t now_ns = uv_hrtime();
    begin_turn();
    debox_loop_lag(watch, now_ns > expected_ns ? now_ns - expected_ns : 0);
    expected_ns = now_ns + PERIOD_MS * 1000000ULL;
    uv_timer_start(timer, measure_lag, PERIOD_MS, 0);
}

static void release(uv_handle_t *handle) {
    free(handle->data);
}

static void written(uv_write_t *write, int status) {
    (void)status;
    begin_turn();
    uv_close((uv_handle_t *)write->handle, release);
}

static void respond(struct client *client) {
    char metrics[METRICS_MAX];
    const char *body = "hello\n";
    if (!strncmp(client->request, "GET /slow ", 10)) {
        usleep(SLEEP_US);
        body = "slept\n";
    } else if (!strncmp(client->request, "GET /metrics ", 13)) {
        debox_loop_metrics(watch, metrics, sizeof(metrics));
        body = metrics;
    }
    int length =
        snprintf(client->response, sizeof(client->response),
                 "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", strlen(body), body);
    uv_buf_t bytes = uv_buf_init(client->response, length);
    uv_write(&client->write, (uv_stream_t *)&client->handle, &bytes, 1, written);
}

static void room(uv_handle_t *handle, size_t suggested, uv_buf_t *bytes) {
    struct client *client = handle->data;
    (void)suggested;
    *bytes = uv_buf_init(client->request + client->used, sizeof(client->request) - 1 - client->used);
}

static void received(uv_stream_t *stream, ssize_t count, const uv_buf_t *bytes) {
    struct client *client = stream->data;
    (void)bytes;
    begin_turn();
    if (count < 0) {
        uv_close((uv_handle_t *)stream, release);
        return;
    }
    client->used += count;
    client->request[client->used] = 0;
    if (!strstr(client->request, "\r\n\r\n")) return;
    uv_read_stop(stream);
    respond(client);
}

static void connected(uv_stream_t *listener, int status) {
    begin_turn();
    struct client *client = status ? NULL : calloc(1, sizeof(*client));
    if (!client) return;
    uv_tcp_init(listener->loop, &client->handle);
    client->handle.data = client;
    if (uv_accept(listener, (uv_stream_t *)&client->handle))
        uv_close((uv_handle_t *)&client->handle, release);
    else
        uv_read_start((uv_stream_t *)&client->handle, room, received);
}

int main(int count, char **arguments) {
    uv_loop_t *loop = uv_default_loop();
    uv_tcp_t listener;
    uv_prepare_t prepare;
    uv_timer_t timer;
    struct sockaddr_in address;
    int length = sizeof(address);
    watch = debox_watch_loop();
    if (!watch) {
        perror("debox_watch_loop");
        return 1;
    }
    uv_prepare_init(loop, &prepare);
    uv_prepare_start(&prepare, end_turn);
    uv_timer_init(loop, &timer);
    expected_ns = uv_hrtime();
    uv_timer_start(&timer, measure_lag, 0, 0);
    uv_ip4_addr("127.0.0.1", count > 1 ? atoi(arguments[1]) : 8000, &address);
    uv_tcp_init(loop, &listener);
    uv_tcp_bind(&listener, (struct sockaddr *)&address, 0);
    int error = uv_listen((uv_stream_t *)&listener, 64, connected);
    if (error) {
        fprintf(stderr, "listening on port %d: %s\n", ntohs(address.sin_port), uv_strerror(error));
        return 1;
    }
    uv_tcp_getsockname(&listener, (struct sockaddr *)&address, &length);
    printf("http://127.0.0.1:%d/\n", ntohs(address.sin_port));
    fflush(stdout);
    return uv_run(loop, UV_RUN_DEFAULT);
}
