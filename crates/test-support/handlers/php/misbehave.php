<?php
// Everything that goes wrong in real programs: ?how=…
header('Content-Type: text/plain');
switch ($_GET['how'] ?? '') {
    case 'fatal': // an error before any output
        undefined_function();
        break;
    case 'fatal-late': // an error in the middle of the body
        echo str_repeat('x', 100000);
        flush();
        undefined_function();
        break;
    case 'short': // a body that is shorter than its declared length
        header('Content-Length: 1000');
        echo 'only this';
        break;
    case 'long': // and one that is longer
        header('Content-Length: 4');
        echo 'this is more than four bytes';
        break;
    case 'chunked': // framing that is the server's to choose
        header('Transfer-Encoding: chunked');
        echo "5\r\nhello\r\n0\r\n\r\n";
        break;
    case 'exit': // no output at all
        header_remove('Content-Type');
        exit(3);
    case 'log': // words for the log
        file_put_contents('php://stderr', "a word for the log\n");
        error_log('another word for the log');
        echo 'done';
        break;
    case 'sleep': // a response that takes too long
        sleep((int) ($_GET['seconds'] ?? 60));
        echo 'awake';
        break;
    case 'die': // the process is gone in the middle of a request
        posix_kill(getmypid(), 9);
        break;
    default:
        http_response_code(404);
        echo 'unknown';
}
