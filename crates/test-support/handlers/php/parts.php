<?php
// A response of unknown length that leaves in parts: ?parts=N&wait_ms=N. Each part is flushed by itself.
header('Content-Type: text/plain');
// Debian's php.ini keeps back 4096 bytes otherwise.
while (ob_get_level() > 0) {
    ob_end_flush();
}
$parts = (int) ($_GET['parts'] ?? 5);
$wait_us = 1000 * (int) ($_GET['wait_ms'] ?? 0);
for ($part = 0; $part < $parts; $part++) {
    echo "part $part\n";
    flush();
    if ($wait_us > 0) {
        usleep($wait_us);
    }
}
