/*
 * The times of requests of a server that was not made for it, and what its threads did meanwhile.
 *
 * A connection is observed from outside, by what happens to its socket: established, accepted, bytes queued,
 * bytes read, bytes sent, everything acknowledged. A request begins with bytes that arrive after a response
 * (or first of all), and its response with the first bytes that are sent after they were read. So this needs
 * no protocol, and works with TLS too. Each time off the CPU of each thread of the server is reported
 * beside it. The Rust code joins both.
 *
 * A Unix socket has no port: its connections are known by the address that they share with their listener.
 *
 * It refuses to copy what is sent or received, but for the beginnings of requests and responses if that is
 * wanted. It copies the paths of files at which a thread sleeps.
 *
 * Sources: include/trace/events/{sock,tcp,sched}.h (sk_data_ready, sock_recv_length and sock_send_length:
 * Linux 6.3); net/ipv4/tcp_input.c and tcp.c (the order of events); Ruan's dissertation (2005), section 2.3.
 */
#include "locks.h"
#include "resource.h"

#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8
#define TCP_LISTEN 10
#define SOCK_STREAM 1
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define PROTOCOL_TCP 6

/* What is known about a call by its number (src/requests/load.rs). */
enum trait {
    FIRST_IS_DESCRIPTOR = 1,
    FIRST_IS_PATH = 2,
    SECOND_IS_PATH = 4,
    /* It waits for events, clients or other threads; its stack tells nothing more. */
    WAITS_FOR_EVENTS = 8,
    ACCEPTS = 16,
    /* Its result is a number of ready events. */
    RETURNS_EVENTS = 32,
    /* Its second argument is a buffer into which it reads, or a list of such. */
    READS = 64,
    READS_LIST = 128,
};

/* How a call gets what it sends: by a buffer, a list of such, or a message with a list. */
enum sends {
    SENDS_BUFFER = 1,
    SENDS_LIST = 2,
    SENDS_MESSAGE = 3,
};

struct connection {
    u64 id;
    u64 sequence;
    u64 acceptor;
    u64 reader;
    u64 established_ns;
    u64 accepted_ns;
    /* The oldest bytes that have not been read; zero if there are none. */
    u64 queued_ns;
    u64 arrived_ns;
    u64 read_ns;
    u64 last_arrived_ns;
    u64 last_read_ns;
    u64 written_ns;
    u64 last_written_ns;
    u64 drained_ns;
    u64 read_bytes;
    u64 written_bytes;
    u64 flags;
    u64 ports;
};

/* By address of the socket. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 65536);
    TYPE(key, u64);
    TYPE(value, struct connection);
} connections SECTION(".maps");

/*
 * Ports on which the server listens; the number of the network namespace is above that of the port. For Unix
 * sockets the kernel's address of the listener's name, which is larger than any of those.
 */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 1024);
    TYPE(key, u64);
    TYPE(value, u64);
} ports SECTION(".maps");

/* Inodes of the server's Unix sockets which listen. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 1024);
    TYPE(key, u64);
    TYPE(value, u64);
} listeners SECTION(".maps");

struct activity {
    /* Off-CPU since this time; zero while it runs. */
    u64 off_ns;
    u64 asleep;
    u64 connection;
    struct off_cpu_event event;
    /* Its last return from a wait for events, and how long it has slept in the next one. */
    u64 turn_ns;
    u64 idle_ns;
    /* Whether it sleeps in a wait for events. */
    u64 waits;
};

struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 16384);
    TYPE(key, u32);
    TYPE(value, struct activity);
} activities SECTION(".maps");

/*
 * By number: connections that are observed, and all that were established; which of them are left out (see
 * is_sampled); whether Unix sockets are observed; since when the ends of calls are seen, zero if they are
 * not.
 */
enum control { CONNECTIONS = 0, ESTABLISHED = 1, SAMPLE = 2, SEES_UNIX = 3, CALLS_SINCE = 4, CONTROLS = 5 };

struct {
    VALUE(type, MAP_ARRAY);
    VALUE(max_entries, CONTROLS);
    TYPE(key, u32);
    TYPE(value, u64);
} control SECTION(".maps");

/* Zeroes which are too large for a program's stack. */
static const volatile struct connection zero_connection = {};
static const volatile struct activity zero_activity = {};

/* Set by the Rust code before loading. */
const volatile u8 traits[CALLS_MAX] = {};
const volatile u8 sends[CALLS_MAX] = {};
const volatile u8 wants_heads = 0;
const volatile u64 close_number = 0;

INLINE int is_target(u32 tgid) {
    return map_lookup(&targets, &tgid) != 0;
}

INLINE u64 port_key(struct sock *sk, u64 port) {
    struct net *net = FIELD(sk, __sk_common.skc_net.net);
    return (u64)FIELD(net, ns.inum) << 16 | port;
}

INLINE u64 control_of(u32 number) {
    u64 *value = map_lookup(&control, &number);
    return value ? *value : 0;
}

#include "sampling.h"

INLINE int is_tcp(struct sock *sk) {
    u16 family = FIELD(sk, __sk_common.skc_family);
    return (family == AF_INET || family == AF_INET6) && FIELD(sk, sk_protocol) == PROTOCOL_TCP;
}

INLINE int is_unix(struct sock *sk) {
    return FIELD(sk, __sk_common.skc_family) == AF_UNIX && FIELD(sk, sk_type) == SOCK_STREAM;
}

/* The name of a Unix socket, which one that was accepted shares with its listener; zero if it has none. */
INLINE u64 name_of(struct sock *sk) {
    struct unix_sock *named = (void *)sk;
    return HAS_FIELD(named, addr) ? (u64)FIELD(named, addr) : 0;
}

/* The server listens at the name of a Unix socket. */
INLINE void learn_name(struct sock *sk) {
    u64 one = 1, name = name_of(sk);
    if (control_of(SEES_UNIX) && name) map_update(&ports, &name, &one, UPDATE_ANY);
}

/* A client has connected to a Unix socket which listens. */
INLINE void connected(struct sock *listener) {
    struct socket_alloc *socket = (void *)FIELD(listener, sk_socket);
    u64 inode = FIELD(socket, vfs_inode.i_ino);
    if (map_lookup(&listeners, &inode)) learn_name(listener);
}

/* ---- Connections ---- */

/* A connection to one of the ports, made known now. */
INLINE struct connection *new_connection(struct sock *sk, u64 flags, u64 key) {
    u16 port = FIELD(sk, __sk_common.skc_num);
    u64 address = (u64)sk;
    if (!map_lookup(&ports, &key)) return 0;
    u32 counted = CONNECTIONS;
    u64 *count = map_lookup(&control, &counted);
    if (!count) return 0;
    if (map_update(&connections, &address, (const void *)&zero_connection, UPDATE_ANY)) {
        count_lost(LOST_CONNECTIONS);
        return 0;
    }
    struct connection *connection = map_lookup(&connections, &address);
    if (!connection) return 0;
    u64 number = __sync_fetch_and_add(count, 1);
    u16 peer = FIELD(sk, __sk_common.skc_dport);
    connection->flags = flags;
    if (flags & SEEN_LATE && !control_of(CALLS_SINCE)) connection->flags |= FIRST_UNKNOWN;
    if (is_unix(sk)) {
        connection->flags |= (u64)number_of_unix(sk) << 32;
    } else {
        connection->ports = port | (u64)__builtin_bswap16(peer) << 32;
        connection->flags |= (u64)peer << 32;
    }
    /* Not zero, which means none. */
    connection->id = number + 1;
    return connection;
}

/*
 * Whether the memory of a Unix socket (it has no ports) belongs to another one by now: what was accepted has
 * a file. The end of one is seen only if its process closes it by a call.
 */
INLINE int is_reused(struct connection *connection, struct sock *sk) {
    return connection->accepted_ns && !connection->ports && !FIELD(sk, sk_socket);
}

/* Whether a Unix socket was accepted and has been sent something. */
INLINE int is_used(struct sock *sk) {
    return FIELD(sk, sk_socket) && FIELD(sk, sk_receive_queue.qlen);
}

/* The connection of a socket, also if it is older than the observation; null if it is not observed. */
INLINE struct connection *connection_of(struct sock *sk) {
    u64 address = (u64)sk;
    struct connection *connection = map_lookup(&connections, &address);
    if (!connection || is_reused(connection, sk)) {
        u8 state = FIELD(sk, __sk_common.skc_state);
        if (state == TCP_LISTEN && is_unix(sk)) connected(sk);
        if (state != TCP_ESTABLISHED && state != TCP_CLOSE_WAIT) return 0;
        connection = 0;
        if (is_tcp(sk))
            connection = new_connection(sk, SEEN_LATE, port_key(sk, FIELD(sk, __sk_common.skc_num)));
        else if (is_unix(sk))
            connection = new_connection(sk, is_used(sk) ? SEEN_LATE : 0, name_of(sk));
    }
    return connection;
}

/* The accept was not seen, so the phases of the first request are not known. */
INLINE int is_left_out(struct connection *connection) {
    return connection->flags & FIRST_UNKNOWN && !connection->sequence;
}

INLINE void report_request(struct connection *connection, u64 writer, u64 now) {
    if (is_left_out(connection)) return;
    struct request_event event = {
        .kind = EVENT_REQUEST,
        .connection = connection->id,
        .sequence = connection->sequence,
        .acceptor = connection->acceptor,
        .reader = connection->reader,
        .writer = writer,
        .established_ns = connection->established_ns,
        .accepted_ns = connection->accepted_ns,
        .arrived_ns = connection->arrived_ns,
        .read_ns = connection->read_ns,
        .last_arrived_ns = connection->last_arrived_ns,
        .last_read_ns = connection->last_read_ns,
        .written_ns = now,
        .read_bytes = connection->read_bytes,
        .flags = connection->flags | (writer ? 0 : UNANSWERED),
        .ports = connection->ports,
    };
    if (ringbuf_output(&events, &event, sizeof(event), NO_WAKEUP)) count_lost(LOST_RECORDS);
}

/* The end of a request and its response; what is queued is the beginning of the next. */
INLINE void finish(struct connection *connection, u64 now) {
    if (is_left_out(connection)) {
        /* The next one is known. */
    } else if (connection->written_ns) {
        struct response_event event = {
            .kind = EVENT_RESPONSE,
            .connection = connection->id,
            .sequence = connection->sequence,
            .last_written_ns = connection->last_written_ns,
            .drained_ns = connection->drained_ns,
            .written_bytes = connection->written_bytes,
        };
        if (ringbuf_output(&events, &event, sizeof(event), NO_WAKEUP)) count_lost(LOST_RECORDS);
    } else if (connection->read_ns || connection->queued_ns) {
        if (!connection->arrived_ns) connection->arrived_ns = connection->queued_ns;
        report_request(connection, 0, now);
    } else {
        return;
    }
    connection->sequence += 1;
    connection->arrived_ns = 0;
    connection->read_ns = 0;
    connection->last_arrived_ns = 0;
    connection->last_read_ns = 0;
    connection->written_ns = 0;
    connection->last_written_ns = 0;
    connection->drained_ns = 0;
    connection->read_bytes = 0;
    connection->written_bytes = 0;
}

/*
 * Whether the client has the response, but for two segments which it need not acknowledge at once (RFC 1122,
 * 4.2.3.2).
 */
INLINE int is_drained(struct tcp_sock *tcp, u32 acknowledged) {
    return tcp->write_seq - acknowledged <= 2 * tcp->mss_cache;
}

INLINE u32 unread_bytes(struct sock *sk) {
    struct tcp_sock *tcp = to_tcp(sk);
    return tcp ? tcp->rcv_nxt - tcp->copied_seq : FIELD(sk, sk_receive_queue.qlen);
}

/* A connection whose accept will not be seen is not observed before its second request. */
INLINE void established(struct sock *sk) {
    u64 key = port_key(sk, FIELD(sk, __sk_common.skc_num));
    if (!map_lookup(&ports, &key)) return;
    u32 number = ESTABLISHED;
    u64 *count = map_lookup(&control, &number);
    if (count) add(count, 1);
    if (!control_of(CALLS_SINCE) || !is_sampled(FIELD(sk, __sk_common.skc_dport))) return;
    struct connection *connection = new_connection(sk, 0, key);
    if (connection) connection->established_ns = now_ns();
}

SECTION("tp_btf/inet_sock_set_state") int changed(u64 *context) {
    struct sock *sk = (void *)context[0];
    s32 old = context[1], new = context[2];
    u64 address = (u64)sk;
    if (new == TCP_LISTEN) {
        u32 tgid = current_pid_tgid() >> 32;
        u32 port = FIELD(sk, __sk_common.skc_num);
        u64 one = 1, key = port_key(sk, port);
        u8 known = 1;
        if (!is_target(tgid) || !is_tcp(sk)) return 0;
        map_update(&ports, &key, &one, UPDATE_ANY);
        map_update(&local_ports, &port, &known, UPDATE_ANY);
    } else if (new == TCP_ESTABLISHED && old == TCP_SYN_RECV) {
        established(sk);
    } else if (new == TCP_CLOSE_WAIT || new == TCP_CLOSE) {
        struct connection *connection = map_lookup(&connections, &address);
        if (!connection) return 0;
        /* A client that has finished sending may still read, so a response under way goes on. */
        if (new == TCP_CLOSE) {
            finish(connection, now_ns());
            map_delete(&connections, &address);
        }
    }
    return 0;
}

/* In the softirq that queued the bytes, usually. */
SECTION("tp_btf/sk_data_ready") int arrived(u64 *context) {
    struct sock *sk = (void *)context[0];
    if (!is_observed(sk)) return 0;
    struct connection *connection = connection_of(sk);
    if (!connection) return 0;
    /* The client's end of the connection counts as a byte, but asks for nothing. */
    u8 state = sk->__sk_common.skc_state;
    if (unread_bytes(sk) <= (state == TCP_CLOSE_WAIT)) return 0;
    u64 now = now_ns();
    if (connection->written_ns) finish(connection, now);
    if (!connection->queued_ns) connection->queued_ns = now;
    return 0;
}

INLINE struct activity *activity_of(u32 tid) {
    struct activity *activity = map_lookup(&activities, &tid);
    if (activity) return activity;
    map_update(&activities, &tid, (const void *)&zero_activity, UPDATE_NOEXIST);
    activity = map_lookup(&activities, &tid);
    if (!activity) count_lost(LOST_THREADS);
    return activity;
}

INLINE void uses(u64 task, struct connection *connection) {
    struct activity *activity = activity_of(task);
    if (activity) activity->connection = connection->id;
}

/* Whether a task is of the server, which the last reader of the connection was. */
INLINE int is_of_server(struct connection *connection, u64 task) {
    return task == connection->reader || is_target(task >> 32);
}

SECTION("tp_btf/sock_recv_length") int received(u64 *context) {
    struct sock *sk = (void *)context[0];
    s32 bytes = context[1];
    u64 task = current_pid_tgid();
    if (bytes <= 0 || !is_observed(sk)) return 0;
    struct connection *connection = connection_of(sk);
    if (!connection || !is_of_server(connection, task)) return 0;
    u64 now = now_ns();
    /* A request that arrived with the one before it. */
    if (connection->written_ns) finish(connection, now);
    if (!connection->read_ns) {
        connection->arrived_ns = connection->queued_ns ? connection->queued_ns : now;
        connection->read_ns = now;
    }
    connection->last_arrived_ns = connection->queued_ns ? connection->queued_ns : now;
    connection->last_read_ns = now;
    connection->reader = task;
    connection->read_bytes += bytes;
    if (!unread_bytes(sk)) connection->queued_ns = 0;
    uses(task, connection);
    return 0;
}

SECTION("tp_btf/sock_send_length") int sent(u64 *context) {
    struct sock *sk = (void *)context[0];
    s32 bytes = context[1];
    u64 task = current_pid_tgid();
    if (bytes <= 0 || !is_observed(sk)) return 0;
    struct connection *connection = connection_of(sk);
    /* What a server sends unasked belongs to no request. */
    if (!connection || !connection->read_ns || !is_of_server(connection, task)) return 0;
    u64 now = now_ns();
    int is_first = !connection->written_ns;
    if (is_first) {
        connection->written_ns = now;
        report_request(connection, task, now);
    }
    connection->last_written_ns = now;
    connection->written_bytes += bytes;
    struct tcp_sock *tcp = to_tcp(sk);
    /* What a Unix socket takes is in the queue of the client. */
    connection->drained_ns = !tcp || is_drained(tcp, tcp->snd_una) ? now : 0;
    if (is_first || task != connection->reader) uses(task, connection);
    return 0;
}

/* Each segment that arrives, before its acknowledgement is applied. */
SECTION("tp_btf/tcp_probe") int acknowledged(u64 *context) {
    struct sock *sk = (void *)context[0];
    u64 address = (u64)sk;
    if (!is_observed(sk)) return 0;
    struct connection *connection = map_lookup(&connections, &address);
    if (!connection || !connection->written_ns || connection->drained_ns) return 0;
    struct sk_buff *buffer = (void *)context[1];
    struct tcphdr *header = (void *)FIELD(buffer, data);
    struct tcp_sock *tcp = to_tcp(sk);
    if (tcp && is_drained(tcp, __builtin_bswap32(FIELD(header, ack_seq)))) connection->drained_ns = now_ns();
    return 0;
}

/* ---- Threads ---- */

INLINE struct sock *socket_at(u64 descriptor) {
    struct file *file = open_file(current_task(), descriptor);
    return file ? FIELD((struct socket *)FIELD(file, private_data), sk) : 0;
}

INLINE void accepted(u64 task, u64 descriptor) {
    struct sock *sk = socket_at(descriptor);
    if (sk && is_unix(sk)) learn_name(sk);
    if (!sk) return;
    if (!is_sampled(is_unix(sk) ? number_of_unix(sk) : FIELD(sk, __sk_common.skc_dport))) return;
    struct connection *connection = connection_of(sk);
    if (!connection) return;
    connection->accepted_ns = now_ns();
    connection->acceptor = task;
    uses(task, connection);
}

/*
 * A process of the server closes a Unix socket, which no other tracepoint tells. A child may close the copy
 * that it was given by fork, so it has to be the process which used the connection.
 */
SECTION("tp_btf/sys_enter") int enter(u64 *context) {
    if (context[1] != close_number) return 0;
    u32 tgid = current_pid_tgid() >> 32;
    if (!is_target(tgid)) return 0;
    struct pt_regs *regs = (void *)context[0];
    struct sock *sk = socket_at((u32)ARGUMENT_0(LOAD, regs));
    u64 address = (u64)sk;
    struct connection *connection = sk ? map_lookup(&connections, &address) : 0;
    if (!connection || !is_unix(sk)) return 0;
    if (connection->acceptor >> 32 != tgid && connection->reader >> 32 != tgid) return 0;
    finish(connection, now_ns());
    map_delete(&connections, &address);
    return 0;
}

#include "call.h"
#include "failures.h"
#include "turns.h"

/* A call by x86's 32-bit entry has a number of another table. */
INLINE int is_compat(void) {
    return compat_flag(current_task()) != 0;
}

/* Each call of the system comes here, so the number is looked at first, which needs no map. */
SECTION("tp_btf/sys_exit") int leave(u64 *context) {
    struct pt_regs *regs = (void *)context[0];
    u64 number = LOAD(regs, orig_ax, syscallno);
    s64 result = context[1];
    if (number >= CALLS_MAX) return 0;
    if (result < 0) {
        u64 failing = current_pid_tgid();
        if (is_counted(result) && is_target(failing >> 32) && !is_compat())
            count_failure(failing, number, result);
        return 0;
    }
    u8 trait = traits[number];
    int may_have_head = wants_heads && (trait & (READS | READS_LIST) || sends[number]);
    if (!(trait & (ACCEPTS | RETURNS_EVENTS)) && !may_have_head) return 0;
    u64 task = current_pid_tgid();
    if (!is_target(task >> 32) || is_compat()) return 0;
    if (trait & ACCEPTS) accepted(task, result);
    if (wants_heads && trait & (READS | READS_LIST)) head(regs, trait, result);
    if (wants_heads && sends[number]) status(regs, sends[number], result);
    if (trait & RETURNS_EVENTS) {
        count_ready(result);
        end_turn(task);
    }
    return 0;
}

#include "off_cpu.h"

/* ---- Processes ---- */

SECTION("tp_btf/sched_process_fork") int forked(u64 *context) {
    struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
    u32 from = parent->tgid, to = child->tgid;
    u64 one = 1;
    if (!is_target(from)) return 0;
    if (from != to && map_update(&targets, &to, &one, UPDATE_ANY)) {
        count_lost(LOST_PROCESSES);
        return 0;
    }
    /* It can run from now on. */
    struct activity *activity = activity_of(child->pid);
    if (!activity) return 0;
    struct off_cpu_event *event = &activity->event;
    event->kind = EVENT_OFF_CPU;
    event->task = (u64)to << 32 | (u32)child->pid;
    event->number = CALL_NONE;
    event->stack = STACK_UNKNOWN;
    event->start_ns = now_ns();
    activity->off_ns = event->start_ns;
    return 0;
}

SECTION("tp_btf/sched_process_exit") int exited(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid, tgid = task->tgid;
    map_delete(&activities, &tid);
    map_delete(&locks, &tid);
    /* The process id will be reused by another process. */
    if (FIELD(FIELD(task, signal), live.counter) == 0) map_delete(&targets, &tgid);
    return 0;
}

char permission[] SECTION("license") = "Dual MIT/GPL";
