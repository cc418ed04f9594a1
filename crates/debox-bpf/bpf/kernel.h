/*
 * The parts of the kernel that the programs use: types, map declarations and helpers.
 *
 * A type here names only the fields that are read. The attribute preserve_access_index makes the compiler
 * record which field is meant, and the loader inserts the offset the running kernel has ("compile once,
 * run everywhere"). So neither kernel headers nor bpftool are needed to build, and one object serves many
 * kernels.
 *
 * Sources: bpf(2), bpf-helpers(7); Documentation/bpf/btf.rst in the kernel.
 */
#ifndef HEADWAY_KERNEL_H
#define HEADWAY_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

/* How a BTF-defined map spells a number and a type. */
#define VALUE(name, number) int(*name)[number]
#define TYPE(name, type) type *name
#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* The compiler stores nothing on the other side of it. */
#define BARRIER() __asm__ volatile("" ::: "memory")

enum map_type {
    MAP_HASH = 1,
    MAP_ARRAY = 2,
    MAP_PERCPU_ARRAY = 6,
    MAP_STACK_TRACE = 7,
    MAP_LRU_HASH = 9,
    MAP_RINGBUF = 27,
};

enum update_flag { UPDATE_ANY = 0, UPDATE_NOEXIST = 1 };

/* bpf_get_stack and bpf_get_stackid: the user's frames instead of the kernel's. */
#define STACK_OF_USER (1ULL << 8)

/* Does not wake the reader of the ring buffer, which polls. */
#define NO_WAKEUP 1

#define PF_KTHREAD 0x00200000
/* An exiting task leaves the CPU for the last time: not a sleep. */
#define TASK_DEAD 0x80
/* contention_begin: the waiter spins, it does not sleep. */
#define LOCK_SPINS 1
/* x86: the call came through the 32-bit entry and has a number from another table. */
#define THREAD_COMPAT 0x2
#define FUTEX_PRIVATE 128
#define VM_EXEC 4
#define BUSY 16
#define ANON_INODE_MAGIC 0x09041934

#define KERNEL_TYPE __attribute__((preserve_access_index))

struct super_block {
    unsigned long s_magic;
    u32 s_dev;
} KERNEL_TYPE;

struct inode {
    u16 i_mode;
    unsigned long i_ino;
    struct super_block *i_sb;
} KERNEL_TYPE;

struct qstr {
    const unsigned char *name;
} KERNEL_TYPE;

struct dentry {
    struct dentry *d_parent;
    struct qstr d_name;
} KERNEL_TYPE;

struct path {
    struct dentry *dentry;
} KERNEL_TYPE;

struct file {
    struct inode *f_inode;
    struct path f_path;
    void *private_data;
} KERNEL_TYPE;

struct fdtable {
    unsigned int max_fds;
    struct file **fd;
} KERNEL_TYPE;

struct files_struct {
    struct fdtable *fdt;
} KERNEL_TYPE;

typedef struct {
    int counter;
} KERNEL_TYPE atomic_t;

struct signal_struct {
    atomic_t live;
} KERNEL_TYPE;

struct thread_info {
    u32 status;
} KERNEL_TYPE;

struct sched_entity {
    unsigned char sched_delayed;
} KERNEL_TYPE;

struct vm_area_struct {
    unsigned long vm_flags;
} KERNEL_TYPE;

struct task_struct {
    struct thread_info thread_info;
    unsigned int __state;
    int exit_state;
    unsigned int flags;
    int on_rq;
    struct sched_entity se;
    s32 pid;
    s32 tgid;
    unsigned long min_flt;
    unsigned long maj_flt;
    void *mm;
    struct files_struct *files;
    struct signal_struct *signal;
} KERNEL_TYPE;

struct ns_common {
    unsigned int inum;
} KERNEL_TYPE;

struct net {
    struct ns_common ns;
} KERNEL_TYPE;

typedef struct {
    struct net *net;
} KERNEL_TYPE possible_net_t;

struct sock_common {
    u16 skc_family;
    unsigned char skc_state;
    u16 skc_num;
    u16 skc_dport;
    possible_net_t skc_net;
} KERNEL_TYPE;

struct sk_buff_head {
    u32 qlen;
} KERNEL_TYPE;

struct socket;

struct sock {
    struct sock_common __sk_common;
    struct sk_buff_head sk_receive_queue;
    struct socket *sk_socket;
    u16 sk_type;
    u16 sk_protocol;
} KERNEL_TYPE;

struct socket {
    struct sock *sk;
} KERNEL_TYPE;

struct socket_alloc {
    struct socket socket;
    struct inode vfs_inode;
} KERNEL_TYPE;

struct unix_address;

struct unix_sock {
    struct unix_address *addr;
    struct sock *peer;
} KERNEL_TYPE;

struct tcp_sock {
    u32 rcv_nxt;
    u32 copied_seq;
    u32 write_seq;
    u32 snd_una;
    u32 mss_cache;
} KERNEL_TYPE;

struct sk_buff {
    unsigned char *data;
} KERNEL_TYPE;

struct tcphdr {
    u32 ack_seq;
} KERNEL_TYPE;

struct linux_binprm {
    const char *filename;
} KERNEL_TYPE;

struct seq_file;

/* The first argument of every iterator program. */
struct bpf_iter_meta {
    struct seq_file *seq;
} KERNEL_TYPE;

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
    unsigned long r10, r9, r8, cx, dx, si, di, orig_ax, ip, sp;
} KERNEL_TYPE;
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
    u64 regs[31];
    u64 sp;
    u64 pc;
    u64 orig_x0;
    s32 syscallno;
} KERNEL_TYPE;
#else
#error "the programs know the registers of x86_64 and aarch64"
#endif

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
/* CLOCK_MONOTONIC, which the in-band records use as well. */
static u64 (*const now_ns)(void) = (void *)5;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static long (*const current_comm)(void *text, u32 bytes) = (void *)16;
static long (*const stack_id)(void *context, void *map, u64 flags) = (void *)27;
static long (*const read_stack)(void *context, void *frames, u32 bytes, u64 flags) = (void *)67;
static long (*const read_user)(void *to, u32 bytes, const void *from) = (void *)112;
static long (*const read_kernel)(void *to, u32 bytes, const void *from) = (void *)113;
static long (*const read_user_text)(void *to, u32 bytes, const void *from) = (void *)114;
static long (*const read_kernel_text)(void *to, u32 bytes, const void *from) = (void *)115;
static long (*const seq_write)(struct seq_file *file, const void *data, u32 bytes) = (void *)127;
static long (*const ringbuf_output)(void *ringbuf, void *data, u64 bytes, u64 flags) = (void *)130;
static void *(*const ringbuf_reserve)(void *ringbuf, u64 bytes, u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *record, u64 flags) = (void *)132;
/* Null if the socket is not one of TCP. Its fields can be loaded, which costs less than reading them. */
static struct tcp_sock *(*const to_tcp)(void *sk) = (void *)137;
static struct task_struct *(*const current_task)(void) = (void *)158;
typedef long (*vma_visitor)(struct task_struct *task, struct vm_area_struct *vma, void *answer);
static long (*const find_vma)(struct task_struct *task, u64 address, vma_visitor visit, void *answer,
                              u64 flags) = (void *)180;
static long (*const task_registers)(struct task_struct *task) = (void *)175;

/* A field of a kernel structure, by a read that cannot fault; zero if the address is bad. */
#define FIELD(pointer, field)                                                                                \
    ({                                                                                                       \
        typeof(pointer) base_ = (pointer);                                                                   \
        typeof(base_->field) value_ = 0;                                                                     \
        read_kernel(&value_, sizeof(value_), __builtin_preserve_access_index(&base_->field));                \
        value_;                                                                                              \
    })

/* Whether the running kernel has a field; the loader decides (BPF_FIELD_EXISTS). */
#define HAS_FIELD(pointer, field) __builtin_preserve_field_info((pointer)->field, 2)

#endif
