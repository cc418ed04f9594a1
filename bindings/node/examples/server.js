'use strict';
// A server which serves the metrics of its own event loop. Argument: a port, 8000 if it is absent.
//
//   node server.js
//   curl -s http://127.0.0.1:8000/slow
//   curl -s http://127.0.0.1:8000/metrics | grep loop_blocked
//
// The handler of /slow waits for a child, which blocks the loop.

const { execFileSync } = require('node:child_process');
const http = require('node:http');
const { watchLoop } = require('..');

const watch = watchLoop();

const server = http.createServer((request, response) => {
  if (request.url === '/metrics') {
    response.end(watch.metrics());
  } else if (request.url === '/slow') {
    execFileSync('sleep', ['0.3']);
    response.end('slept\n');
  } else {
    response.end('hello\n');
  }
});

server.listen(Number(process.argv[2] ?? 8000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/`);
});
