/*
 * mod_headway.c: Apache's files opened with the help of `headway backend` (Flashpache), for Apache 2.4.
 *
 * What it does, in the order of a request.
 *
 * map_to_storage opens the file that the URL was translated to, before Apache does, by libheadway_open:
 * where that would wait for the disk, the service prevents it. The status goes to Apache (r->finfo), and the
 * open file is kept; of a small one, its contents.
 *
 * open_htaccess has the names of .htaccess files looked up the same way.
 *
 * handler sends what is kept as Apache's own handler would: bucket, filters, ranges, conditions, logging.
 *
 * What it refuses: to decide anything. Directory walk, access control, symbolic links, negotiation and
 * indexes are Apache's and run after map_to_storage as they always do; they find the kernel's caches filled.
 * Whatever is not a plain GET or HEAD of a regular file that this process may read goes Apache's way from the
 * start. The file was opened by this process, with its rights, not by the service: see
 * clients/headway_open.h.
 *
 * Sources: Ruan and Pai 2006, section 5.1 (Flashpache); Apache's http_request.h and http_config.h.
 */
#include "httpd.h"

#include "ap_config.h"
#include "apr_file_info.h"
#include "apr_file_io.h"
#include "apr_fnmatch.h"
#include "apr_optional_hooks.h"
#include "apr_portable.h"
#include "apr_strings.h"
#include "http_config.h"
#include "http_core.h"
#include "http_log.h"
#include "http_protocol.h"
#include "http_request.h"
#include "mod_status.h"
#include "util_filter.h"

#include "headway_open.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

APLOG_USE_MODULE(headway);
extern __attribute__((visibility("default"))) module AP_MODULE_DECLARE_DATA headway_module;

/* HeadwayEnable in a <Directory>. */
struct place {
    const char *path;
    apr_size_t length;
    int on;
};

/* A server's part: whether, and below which directories. */
struct server_settings {
    int on; /* -1: as the main server */
    apr_array_header_t *places;
};

/* A file kept for the handler, in the pool of the request that opened it: open, or read. */
struct kept {
    int fd; /* -1: read */
    apr_finfo_t status;
    const char *filename, *content;
    apr_size_t length;
    apr_pool_t *pool;
};

/* Files up to this size are sent from memory. Reading one also shows whether it is in memory. This saves the
 * descriptor and its mapping or `sendfile`. A separate check would count as a second use of the pages. */
enum { SMALL_BYTES = 64 * 1024 };

/* What all processes count: the client library's part, and the responses that the handler sent. */
struct counters {
    struct headway_statistics opening;
    uint64_t sent;
};

/* One service for the whole server: the directives of it stand outside of virtual hosts. */
static struct headway_options options;
static struct counters *counters;
static struct headway_client *client;

/* ---------------------------------------------------------------- settings */

static void *create_server(apr_pool_t *pool, server_rec *server) {
    struct server_settings *settings = apr_pcalloc(pool, sizeof *settings);
    settings->on = -1;
    settings->places = apr_array_make(pool, 4, sizeof(struct place));
    if (!server->is_virtual) {
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
    }
    return settings;
}

/* A virtual host's own places come after the main server's, and the last one that matches best counts. */
static void *merge_server(apr_pool_t *pool, void *main_settings, void *own_settings) {
    struct server_settings *above = main_settings, *own = own_settings;
    struct server_settings *merged = apr_pcalloc(pool, sizeof *merged);
    merged->on = own->on >= 0 ? own->on : above->on;
    merged->places = apr_array_append(pool, above->places, own->places);
    return merged;
}

static const char *set_backend(cmd_parms *command, void *unused, const char *path) {
    const char *wrong = ap_check_cmd_context(command, GLOBAL_ONLY);
    if (wrong) return wrong;
    options.socket = ap_server_root_relative(command->pool, path);
    if (!options.socket) return apr_pstrcat(command->pool, "HeadwayBackend: no path: ", path, NULL);
    return strlen(options.socket) < sizeof(((struct sockaddr_un *)0)->sun_path)
               ? NULL
               : "HeadwayBackend: longer than the path of a socket may be (107 bytes)";
}

/* Which directory's rules hold is known only after the walk that is to be spared its waits, so a <Directory>
 * is known by its path here. */
static const char *set_enable(cmd_parms *command, void *unused, int on) {
    struct server_settings *settings = ap_get_module_config(command->server->module_config, &headway_module);
    if (!command->path) {
        settings->on = on;
        return NULL;
    }
    const ap_directive_t *section = command->directive->parent;
    if (ap_check_cmd_context(command, NOT_IN_LOCATION | NOT_IN_FILES) || !section ||
        strcasecmp(section->directive, "<Directory") != 0 || section->args[0] == '~' ||
        command->path[0] != '/' || apr_fnmatch_test(command->path)) {
        return "HeadwayEnable: allowed in a server, a virtual host, or a <Directory> without patterns";
    }
    struct place *place = apr_array_push(settings->places);
    place->path = apr_pstrdup(command->pool, command->path);
    place->length = strlen(place->path);
    while (place->length > 0 && place->path[place->length - 1] == '/') place->length--;
    place->on = on;
    return NULL;
}

static const char *number(cmd_parms *command, const char *text, apr_int64_t least, apr_int64_t most,
                          apr_int64_t *value) {
    const char *wrong = ap_check_cmd_context(command, GLOBAL_ONLY);
    char *end;
    if (wrong) return wrong;
    errno = 0;
    *value = apr_strtoi64(text, &end, 10);
    if (errno || end == text || *end || *value < least || *value > most) {
        return apr_psprintf(command->pool, "%s: a number from %" APR_INT64_T_FMT " to %" APR_INT64_T_FMT,
                            command->cmd->name, least, most);
    }
    return NULL;
}

static const char *set_timeout(cmd_parms *command, void *unused, const char *text) {
    apr_int64_t value = 0;
    const char *wrong = number(command, text, 1, 600000, &value);
    options.timeout_ms = (unsigned)value;
    return wrong;
}

static const char *set_preload(cmd_parms *command, void *unused, const char *text) {
    apr_int64_t value = 0;
    const char *wrong = number(command, text, 0, 1 << 30, &value);
    options.read_in = value == 0 ? UINT64_MAX : (uint64_t)value;
    return wrong;
}

static const char *set_fallback(cmd_parms *command, void *unused, int on) {
    options.no_fallback = !on;
    return ap_check_cmd_context(command, GLOBAL_ONLY);
}

static const command_rec commands[] = {
    AP_INIT_TAKE1("HeadwayBackend", set_backend, NULL, RSRC_CONF, "the socket of headway backend"),
    AP_INIT_FLAG("HeadwayEnable", set_enable, NULL, RSRC_CONF | ACCESS_CONF,
                 "whether files are opened with the service's help; also for a <Directory>"),
    AP_INIT_TAKE1("HeadwayTimeout", set_timeout, NULL, RSRC_CONF,
                  "milliseconds to wait for the service's answer (5000)"),
    AP_INIT_FLAG("HeadwayFallback", set_fallback, NULL, RSRC_CONF,
                 "without an answer: On opens the file as ever (default), Off answers 503"),
    AP_INIT_TAKE1("HeadwayPreload", set_preload, NULL, RSRC_CONF,
                  "bytes of a file to have in memory before it is sent (1048576)"),
    {NULL}};

/* ---------------------------------------------------------------- processes */

static apr_status_t unshare_statistics(void *unused) {
    munmap(counters, sizeof *counters);
    counters = NULL;
    return APR_SUCCESS;
}

/* The counters lie in memory that all children share, for mod_status. They start at zero when Apache
 * restarts. */
static int share_statistics(apr_pool_t *pool, apr_pool_t *log, apr_pool_t *scratch, server_rec *server) {
    if (!options.socket || counters) return OK;
    void *shared = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        ap_log_error(APLOG_MARK, APLOG_ERR, errno, server, "mod_headway: no memory for counters");
        return HTTP_INTERNAL_SERVER_ERROR;
    }
    counters = shared;
    apr_pool_cleanup_register(pool, NULL, unshare_statistics, apr_pool_cleanup_null);
    return OK;
}

static apr_status_t free_client(void *unused) {
    headway_client_free(client);
    client = NULL;
    return APR_SUCCESS;
}

static void start_child(apr_pool_t *pool, server_rec *server) {
    if (!options.socket) return;
    /* A process that becomes a request's user later (mpm-itk) would open what that user may not read. */
    if (geteuid() == 0) {
        ap_log_error(APLOG_MARK, APLOG_WARNING, 0, server,
                     "mod_headway: this process is root's, so files are opened without the service; "
                     "give Apache a User, or under mpm-itk leave the module off");
        return;
    }
    options.statistics = &counters->opening;
    client = headway_client_new(&options);
    if (client)
        apr_pool_cleanup_register(pool, NULL, free_client, apr_pool_cleanup_null);
    else
        ap_log_error(APLOG_MARK, APLOG_ERR, errno, server,
                     "mod_headway: %s: files are opened without the service", options.socket);
}

/* ---------------------------------------------------------------- requests */

/* The longest place that holds the path decides, else the server. */
static int is_enabled(request_rec *r, const char *path) {
    /* Apache takes `..` away by the text, the kernel by the directories, and behind a link these are two
     * files. */
    if (!client || !path || path[0] != '/' || strstr(path, "/..")) return 0;
    struct server_settings *settings = ap_get_module_config(r->server->module_config, &headway_module);
    int on = settings->on > 0;
    apr_size_t best = 0;
    for (int i = 0; i < settings->places->nelts; i++) {
        struct place *place = &APR_ARRAY_IDX(settings->places, i, struct place);
        char after = strncmp(path, place->path, place->length) == 0 ? path[place->length] : 'x';
        if ((after == '/' || after == '\0') && place->length >= best) {
            best = place->length;
            on = place->on;
        }
    }
    return on;
}

static apr_status_t close_kept(void *data) {
    struct kept *kept = data;
    close(kept->fd);
    return APR_SUCCESS;
}

/* Fills in what Apache's own stat would have, and marks the same fields as valid. */
static void describe(const struct statx *status, const char *filename, apr_pool_t *pool, apr_finfo_t *info) {
    unsigned mode = status->stx_mode;
    memset(info, 0, sizeof *info);
    info->pool = pool;
    info->fname = filename;
    info->valid = APR_FINFO_MIN | APR_FINFO_IDENT | APR_FINFO_NLINK | APR_FINFO_OWNER | APR_FINFO_PROT;
    info->filetype = S_ISDIR(mode) ? APR_DIR : APR_REG;
    /* Three bits to a digit of sixteen, and the bits beyond them by name. */
    info->protection = (apr_fileperms_t)((mode & 0700) << 2 | (mode & 0070) << 1 | (mode & 0007));
    if (mode & S_ISUID) info->protection |= APR_FPROT_USETID;
    if (mode & S_ISGID) info->protection |= APR_FPROT_GSETID;
    if (mode & S_ISVTX) info->protection |= APR_FPROT_WSTICKY;
    info->user = status->stx_uid;
    info->group = status->stx_gid;
    info->size = (apr_off_t)status->stx_size;
    info->device = makedev(status->stx_dev_major, status->stx_dev_minor);
    info->inode = status->stx_ino;
    info->nlink = (apr_int32_t)status->stx_nlink;
    info->atime = apr_time_from_sec(status->stx_atime.tv_sec) + status->stx_atime.tv_nsec / 1000;
    info->mtime = apr_time_from_sec(status->stx_mtime.tv_sec) + status->stx_mtime.tv_nsec / 1000;
    info->ctime = apr_time_from_sec(status->stx_ctime.tv_sec) + status->stx_ctime.tv_nsec / 1000;
}

/* Keeps a file that r->finfo describes; its contents are in the request's pool. */
static void keep(request_rec *r, const struct headway_file *file, const char *content, apr_ssize_t length) {
    struct kept *kept = apr_pcalloc(r->pool, sizeof *kept);
    kept->fd = file->fd;
    kept->filename = r->finfo.fname;
    kept->status = r->finfo;
    kept->pool = r->pool;
    if (length > 0) {
        kept->content = content;
        kept->length = (apr_size_t)length;
    } else {
        apr_pool_cleanup_register(r->pool, kept, close_kept, close_kept);
    }
    ap_set_module_config(r->request_config, &headway_module, kept);
}

/* The contents, once they are wanted: memory of the request's. */
struct room {
    apr_pool_t *pool;
    char *content;
    apr_size_t used;
};

/* Apache keeps what a request has given back, in each of its processes. The kernel may have these pages until
 * they are written again: with a thousand processes they are memory for files. */
static apr_status_t leave_room(void *left) {
    const struct room *room = left;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)room->content;
    uintptr_t first = (begin + page - 1) & -page, end = (begin + room->used) & -page;
    if (first < end) madvise((void *)first, end - first, MADV_FREE);
    return APR_SUCCESS;
}

static void *make_room(void *to, apr_size_t size) {
    struct room *room = to;
    room->used = size;
    /* Always as much, whatever is wanted: pieces of many sizes would be kept one by one. */
    room->content = apr_palloc(room->pool, size > SMALL_BYTES ? size : SMALL_BYTES);
    apr_pool_cleanup_register(room->pool, room, leave_room, apr_pool_cleanup_null);
    return room->content;
}

/* Opens the file and gives Apache its status, as Apache's own stat would have. Anything else Apache finds out
 * itself, from memory by now. */
static int open_file(request_rec *r) {
    struct headway_file file;
    if (r->method_number != M_GET || r->finfo.filetype != APR_NOFILE || !is_enabled(r, r->filename))
        return DECLINED;
    struct room *room = apr_pcalloc(r->pool, sizeof *room);
    room->pool = r->pool;
    apr_ssize_t length = headway_load(client, r->filename, SMALL_BYTES, make_room, room, &file);
    if (length < 0) {
        if (errno != ETIMEDOUT || !options.no_fallback) return DECLINED;
        ap_log_rerror(APLOG_MARK, APLOG_ERR, 0, r, "mod_headway: no answer from %s for %s", options.socket,
                      r->filename);
        return HTTP_SERVICE_UNAVAILABLE;
    }
    int is_file = S_ISREG(file.status.stx_mode);
    if (is_file || S_ISDIR(file.status.stx_mode))
        describe(&file.status, apr_pstrdup(r->pool, r->filename), r->pool, &r->finfo);
    if (is_file)
        keep(r, &file, room->content, length);
    else
        close(file.fd);
    return DECLINED;
}

/* A missing .htaccess is this process's own finding; one that is there is Apache's to read, from memory by
 * now. */
static apr_status_t open_htaccess(request_rec *r, const char *directory, const char *name,
                                  ap_configfile_t **file, const char **full_name) {
    if (!is_enabled(r, directory)) return AP_DECLINED;
    const char *path = ap_make_full_path(r->pool, directory, name);
    struct headway_file found;
    if (headway_open(client, path, &found) == 0) {
        close(found.fd);
        return AP_DECLINED;
    }
    if (errno != ENOENT && errno != ENOTDIR) return AP_DECLINED;
    *full_name = path;
    return errno;
}

/* The kept file as one of Apache's own: with a cleanup that moves along when a filter sets the bucket aside.
 * The duplicate has it, what is put together from a bare descriptor has not. */
static apr_file_t *take_kept(request_rec *r, struct kept *kept, apr_int32_t flags) {
    apr_file_t *bare = NULL, *file = NULL;
    apr_status_t status = apr_os_file_put(&bare, &kept->fd, flags, r->pool);
    if (status == APR_SUCCESS) status = apr_file_dup(&file, bare, r->pool);
    int copy;
    /* Close-on-exec, as Apache opens files: programs started by other modules do not inherit them. */
    if (status == APR_SUCCESS && apr_os_file_get(&copy, file) == APR_SUCCESS)
        fcntl(copy, F_SETFD, FD_CLOEXEC);
    apr_pool_cleanup_run(kept->pool, kept, close_kept);
    ap_set_module_config(r->request_config, &headway_module, NULL);
    return status == APR_SUCCESS ? file : NULL;
}

/* What is kept, as a bucket; `file` if it is not read yet. */
static void insert_kept(request_rec *r, struct kept *kept, apr_file_t *file, apr_bucket_brigade *brigade) {
    core_dir_config *core = ap_get_core_module_config(r->per_dir_config);
    apr_bucket_alloc_t *from = r->connection->bucket_alloc;
    if (!file) {
        apr_bucket *read = apr_bucket_pool_create(kept->content, kept->length, kept->pool, from);
        APR_BRIGADE_INSERT_TAIL(brigade, read);
        return;
    }
    apr_bucket *bucket = apr_brigade_insert_file(brigade, file, 0, r->finfo.size, r->pool);
    if (core->enable_mmap == ENABLE_MMAP_OFF) apr_bucket_file_enable_mmap(bucket, 0);
}

/* Whether another module has found another file under the name since, or another version of it: length and
 * validators would not be those of what is kept. */
static int is_another(const request_rec *r, const struct kept *kept) {
    const apr_finfo_t *now = &r->finfo, *then = &kept->status;
    return now->size != then->size || now->mtime != then->mtime || now->inode != then->inode ||
           strcmp(r->filename, kept->filename) != 0;
}

/* Where links are not simply followed, the walk that has just allowed this path may have seen another thing
 * under the name than what was opened before it. Apache opens what it has allowed then, from memory by now.
 */
static int follows_links(request_rec *r) {
    return (ap_allow_options(r) & (OPT_SYM_LINKS | OPT_SYM_OWNER)) == OPT_SYM_LINKS;
}

/* FileETag Digest: the tag is made from an open file. */
static int needs_digest(const core_dir_config *core) {
    return (((core->etag_bits & ~core->etag_remove) | core->etag_add) & ETAG_DIGEST) != 0;
}

/* Sends what is kept; what this declines, Apache's default handler does, the next and last one. */
static int send_file(request_rec *r) {
    struct kept *kept = ap_get_module_config(r->request_config, &headway_module);
    core_dir_config *core = ap_get_core_module_config(r->per_dir_config);
    int has_path_info = r->path_info && *r->path_info && r->used_path_info != AP_REQ_ACCEPT_PATH_INFO;
    if (!kept || r->method_number != M_GET || r->finfo.filetype != APR_REG || has_path_info ||
        (core->content_md5 & 1) || (kept->content && needs_digest(core)) || is_another(r, kept) ||
        !follows_links(r)) {
        return DECLINED;
    }
    ap_allow_standard_methods(r, MERGE_ALLOW, M_GET, M_OPTIONS, M_POST, -1);
    int wrong = ap_discard_request_body(r);
    if (wrong != OK) return wrong;
    apr_int32_t flags = APR_READ | APR_BINARY | AP_SENDFILE_ENABLED(core->enable_sendfile);
    apr_file_t *file = kept->content ? NULL : take_kept(r, kept, flags);
    if (!file && !kept->content) return DECLINED;

    ap_update_mtime(r, r->finfo.mtime);
    ap_set_last_modified(r);
    ap_set_etag_fd(r, file);
    ap_set_accept_ranges(r);
    ap_set_content_length(r, r->finfo.size);
    apr_bucket_brigade *brigade = apr_brigade_create(r->pool, r->connection->bucket_alloc);
    int unmet = ap_meets_conditions(r);
    if (unmet != OK) {
        if (file) apr_file_close(file);
        r->status = unmet;
    } else {
        insert_kept(r, kept, file, brigade);
    }
    APR_BRIGADE_INSERT_TAIL(brigade, apr_bucket_eos_create(r->connection->bucket_alloc));
    /* Before it goes: a client that has it may ask for the count at once. */
    __atomic_fetch_add(&counters->sent, 1, __ATOMIC_RELAXED);
    apr_status_t status = ap_pass_brigade(r->output_filters, brigade);
    apr_brigade_cleanup(brigade);
    return status == APR_SUCCESS || r->status != HTTP_OK || r->connection->aborted ? OK : AP_FILTER_ERROR;
}

/* ---------------------------------------------------------------- mod_status */

static int show_status(request_rec *r, int flags) {
    if (!counters) return DECLINED;
    const struct headway_statistics *opening = &counters->opening;
    const struct {
        const char *name;
        const uint64_t *value;
    } lines[] = {{"Opened", &opening->opened},
                 {"Answered", &opening->answered},
                 {"NameRequests", &opening->name_requests},
                 {"PageRequests", &opening->page_requests},
                 {"WaitedUs", &opening->waited_us},
                 {"Fallbacks", &opening->fallbacks},
                 {"Timeouts", &opening->timeouts},
                 {"Unreachable", &opening->unreachable},
                 {"Rejected", &opening->rejected},
                 {"Elsewhere", &opening->elsewhere},
                 {"StillBlocking", &opening->still_blocking},
                 {"Retries", &opening->retries},
                 {"Sent", &counters->sent}};
    int is_short = flags & AP_STATUS_SHORT;
    if (!is_short) ap_rputs("<hr /><h2>Headway: the open-file service</h2>\n<dl>", r);
    for (apr_size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        uint64_t value = __atomic_load_n(lines[i].value, __ATOMIC_RELAXED);
        ap_rprintf(r,
                   is_short ? "Headway%s: %" APR_UINT64_T_FMT "\n" : "<dt>%s: %" APR_UINT64_T_FMT "</dt>\n",
                   lines[i].name, (apr_uint64_t)value);
    }
    if (!is_short) ap_rputs("</dl>\n", r);
    return OK;
}

static void register_hooks(apr_pool_t *pool) {
    /* After mod_proxy, which answers for what is no file; before the core's walk. */
    ap_hook_map_to_storage(open_file, NULL, NULL, APR_HOOK_LAST);
    ap_hook_open_htaccess(open_htaccess, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_post_config(share_statistics, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_child_init(start_child, NULL, NULL, APR_HOOK_MIDDLE);
    /* Every module that has something to do with a file comes before, the default handler after. */
    ap_hook_handler(send_file, NULL, NULL, APR_HOOK_REALLY_LAST - 1);
    APR_OPTIONAL_HOOK(ap, status_hook, show_status, NULL, NULL, APR_HOOK_MIDDLE);
}

/* The one name that others see; the client library inside may be in the process a second time. */
__attribute__((visibility("default"))) module AP_MODULE_DECLARE_DATA headway_module = {
    STANDARD20_MODULE_STUFF, NULL, NULL, create_server, merge_server, commands, register_hooks};
