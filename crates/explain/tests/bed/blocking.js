// An event loop one of whose handlers makes a call that blocks.
const { execFileSync } = require('node:child_process');
const http = require('node:http');

const server = http.createServer((request, response) => {
    if (request.url === '/slow') execFileSync('sleep', ['0.05']);
    response.setHeader('Connection', 'close');
    response.end('done');
});
server.listen(Number(process.argv[2]), '127.0.0.1');
