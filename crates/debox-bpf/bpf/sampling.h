/* Which connections are observed. Included by requests.bpf.c. */

/*
 * By local port: whether a socket with it may be the server's. An array costs a fraction of a hash map, and
 * most sockets of the machine are others. Port 0 stands for Unix sockets, which have none.
 */
#define PORTS_MAX 65536
struct {
    VALUE(type, MAP_ARRAY);
    VALUE(max_entries, PORTS_MAX);
    TYPE(key, u32);
    TYPE(value, u8);
} local_ports SECTION(".maps");

/*
 * Whether a connection is among those which are observed at a high rate: all of its requests, or none. The
 * number is the client's port as the socket has it, or what stands for one. A mask says which bits of its
 * hash count, in the upper half is their value.
 */
INLINE int is_sampled(u32 number) {
    u64 sample = control_of(SAMPLE);
    u32 hash = number * 0x9e3779b1;
    hash ^= hash >> 16;
    return (hash & (u32)sample) == sample >> 32;
}

/* What stands for the port of the client of a Unix socket: the kernel's address of its end. */
INLINE u32 number_of_unix(struct sock *sk) {
    struct unix_sock *named = (void *)sk;
    return HAS_FIELD(named, peer) ? (u64)FIELD(named, peer) >> 6 : 0;
}

/*
 * Whether a socket is worth a look. It has to be an argument of the tracepoint. Most are not, so this comes
 * first and is cheap.
 */
INLINE int is_observed(struct sock *sk) {
    u32 port = sk->__sk_common.skc_num;
    u8 *known = map_lookup(&local_ports, &port);
    if (!known || !*known) return 0;
    return is_sampled(port ? sk->__sk_common.skc_dport : number_of_unix(sk));
}
