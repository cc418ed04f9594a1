<?php
// Lets the server send a file: ?file=PATH by X-Sendfile, ?location=PATH by X-Accel-Redirect. What is echoed
// must not reach the client.
if (isset($_GET['file'])) {
    header('X-Sendfile: ' . $_GET['file']);
} else {
    header('X-Accel-Redirect: ' . $_GET['location']);
}
header('Content-Type: text/x-handed-off');
header('Content-Disposition: attachment; filename="report.txt"');
echo "this text stands in place of the file\n";
