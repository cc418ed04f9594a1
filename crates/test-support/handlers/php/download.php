<?php
// A large file of known content: ?size=BYTES, 100 MiB unless told. Block N of 64 KiB is its number in eight
// decimal digits, repeated, so that a block that is lost or repeated shows.
$size_bytes = (int) ($_GET['size'] ?? 100 * 1024 * 1024);
header('Content-Type: application/octet-stream');
header('Content-Disposition: attachment; filename="large.bin"');
header('Content-Length: ' . $size_bytes);
for ($block = 0; $size_bytes > 0; $block++) {
    $bytes = str_repeat(sprintf('%08d', $block), 8192);
    echo $size_bytes < 65536 ? substr($bytes, 0, $size_bytes) : $bytes;
    $size_bytes -= 65536;
}
