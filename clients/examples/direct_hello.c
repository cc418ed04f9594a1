/*
 * Says what it was asked. Built by `make -C clients`; in the configuration:
 *
 *     [[location]]
 *     prefix = "/hello/"
 *     direct = ["build/direct_hello"]
 */
#include "../headway_direct.h"

#include <inttypes.h>
#include <stdio.h>

int main(void) {
    struct headway_direct *server = headway_direct_open(0);
    int next;
    if (!server) {
        perror("direct_hello: is it started by headway serve?");
        return 1;
    }
    while ((next = headway_direct_next(server)) > 0) {
        char text[4096];
        const char *method = headway_direct_variable(server, "REQUEST_METHOD");
        const char *uri = headway_direct_variable(server, "REQUEST_URI");
        int size = snprintf(text, sizeof text, "%s %.3000s with %" PRIu64 " bytes\n", method, uri,
                            headway_direct_body_bytes(server));
        headway_direct_response(server, 200, "Content-Type: text/plain\r\n", text, (size_t)size);
    }
    headway_direct_close(server);
    return next < 0;
}
