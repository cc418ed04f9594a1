/*
 * What the arguments of a call say: the file that it uses, and the beginning of a request that it has read or
 * of a response that it has sent.
 *
 * A part of requests.bpf.c, which has the maps and the traits of calls.
 */
/* Buffer in which an event is built that is too large for a program's stack. */
struct {
    VALUE(type, MAP_PERCPU_ARRAY);
    VALUE(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct head_event);
} head_buffer SECTION(".maps");

/* The beginning of a request which the current task has just read, from its buffer. */
INLINE void read_head(u64 descriptor, const void *buffer, u64 bytes) {
    u64 address = (u64)socket_at(descriptor);
    struct connection *connection = address ? map_lookup(&connections, &address) : 0;
    if (!connection) return;
    if (connection->read_bytes != bytes || connection->written_ns) return;
    u32 number = 0, length = bytes < HEAD_BYTES ? bytes : HEAD_BYTES - 1;
    struct head_event *event = map_lookup(&head_buffer, &number);
    if (!event) return;
    event->kind = EVENT_HEAD;
    event->connection = connection->id;
    event->sequence = connection->sequence;
    u8 *text = (u8 *)event->text;
    length &= HEAD_BYTES - 1;
    if (!length || read_user(text, length, buffer)) return;
    text[length] = 0;
    if (ringbuf_output(&events, event, sizeof(*event), NO_WAKEUP)) count_lost(LOST_RECORDS);
}

INLINE void head(struct pt_regs *regs, u8 trait, u64 bytes) {
    const void *buffer = (const void *)ARGUMENT_1(LOAD, regs);
    if (trait & READS_LIST) {
        u64 first = 0;
        if (read_user(&first, sizeof(first), buffer)) return;
        buffer = (const void *)first;
    }
    read_head((u32)ARGUMENT_0(LOAD, regs), buffer, bytes);
}

/* "HTTP/1.1 200" */
#define STATUS_LINE_MIN 12
/* Of struct msghdr: the list of buffers (include/linux/socket.h). */
#define MESSAGE_LIST_AT 16

/* The beginning of a response which the current task has just sent, from its buffer. */
INLINE void status(struct pt_regs *regs, u8 how, u64 bytes) {
    u64 address = (u64)socket_at((u32)ARGUMENT_0(LOAD, regs));
    struct connection *connection = address ? map_lookup(&connections, &address) : 0;
    if (!connection) return;
    if (!connection->written_ns || connection->written_bytes != bytes || bytes < STATUS_LINE_MIN) return;
    u64 buffer = ARGUMENT_1(LOAD, regs);
    if (how == SENDS_MESSAGE && read_user(&buffer, sizeof(buffer), (void *)(buffer + MESSAGE_LIST_AT)))
        return;
    if (how != SENDS_BUFFER && read_user(&buffer, sizeof(buffer), (void *)buffer)) return;
    struct status_event event = {
        .kind = EVENT_STATUS,
        .connection = connection->id,
        .sequence = connection->sequence,
    };
    if (read_user(event.text, STATUS_LINE_MIN, (void *)buffer)) return;
    if (ringbuf_output(&events, &event, sizeof(event), NO_WAKEUP)) count_lost(LOST_RECORDS);
}

#define FILE_TYPE 0170000
#define FILE_REGULAR 0100000
#define FILE_DIRECTORY 0040000
/* Parts of a path, and the longest of them that is kept whole. */
#define PARTS_MAX 12
#define PART_BYTES 64

/* The path of a file or directory within its file system. */
INLINE void name_file(struct file *file, struct off_cpu_event *event) {
    struct inode *inode = FIELD(file, f_inode);
    u32 type = FIELD(inode, i_mode) & FILE_TYPE;
    if (type != FILE_REGULAR && type != FILE_DIRECTORY) return;
    event->device = FIELD(FIELD(inode, i_sb), s_dev);
    struct dentry *entry = FIELD(file, f_path.dentry);
    u8 *name = (u8 *)event->name;
    u32 used = 0;
    for (int part = 0; part < PARTS_MAX; part++) {
        if (used > NAME_BYTES - PART_BYTES - 1) break;
        long bytes = read_kernel_text(name + used, PART_BYTES, FIELD(entry, d_name.name));
        if (bytes <= 0) break;
        used += bytes & (PART_BYTES - 1);
        if (bytes == PART_BYTES) used += PART_BYTES;
        struct dentry *parent = FIELD(entry, d_parent);
        if (parent == entry) break;
        entry = parent;
    }
    if (used < NAME_BYTES) name[used] = 0;
}

/* The call in which the current task goes to sleep, and the file that it uses. */
INLINE u8 describe(struct task_struct *task, struct off_cpu_event *event) {
    long regs = task_registers(task);
    if (!regs || !in_system_call(regs)) return 0;
    u64 number = number_at(regs);
    event->number = number | compat_flag(task);
    if (number >= CALLS_MAX || event->number != number) return 0;
    u8 trait = traits[number];
    if (trait & WAITS_FOR_EVENTS) return trait;
    if (trait & FIRST_IS_DESCRIPTOR) {
        u64 descriptor = (u32)ARGUMENT_0(READ, regs);
        struct file *file = open_file(task, descriptor);
        event->descriptor = descriptor + 1;
        if (file) name_file(file, event);
    }
    const void *path = 0;
    if (trait & FIRST_IS_PATH) path = (void *)ARGUMENT_0(READ, regs);
    if (trait & SECOND_IS_PATH) path = (void *)ARGUMENT_1(READ, regs);
    if (path) read_user_text(event->name, NAME_BYTES, path);
    return trait;
}
