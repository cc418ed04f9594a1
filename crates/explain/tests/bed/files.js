// An event loop whose handlers read files in the thread of the loop. Arguments: a port and a folder.
const fs = require('node:fs');
const http = require('node:http');

const server = http.createServer((request, response) => {
    response.end(fs.readFileSync(process.argv[3] + request.url));
});
server.keepAliveTimeout = 60000;
server.listen({ port: Number(process.argv[2]), host: '127.0.0.1', backlog: 1 });
