<?php
// A form. GET shows it; POST returns the uploaded file as it is, with what else was sent in fields of the head.
if ($_SERVER['REQUEST_METHOD'] !== 'POST') {
    header('Content-Type: text/html; charset=utf-8');
    echo '<!doctype html><title>Form</title><form method="post" enctype="multipart/form-data">',
        '<input name="title"><input type="file" name="file"><button>Send</button></form>', "\n";
    exit;
}
if (!isset($_FILES['file'])) {
    // An ordinary form without a file.
    header('Content-Type: text/plain; charset=utf-8');
    foreach ($_POST as $name => $value) {
        echo $name, '=', $value, "\n";
    }
    exit;
}
$file = $_FILES['file'];
if ($file['error'] !== UPLOAD_ERR_OK) {
    http_response_code(400);
    header('Content-Type: text/plain');
    echo 'upload failed with code ', $file['error'], "\n";
    exit;
}
header('Content-Type: application/octet-stream');
header('Content-Length: ' . $file['size']);
header('X-Title: ' . rawurlencode($_POST['title'] ?? ''));
header('X-File-Name: ' . rawurlencode($file['name']));
header('X-File-Type: ' . $file['type']);
readfile($file['tmp_name']);
