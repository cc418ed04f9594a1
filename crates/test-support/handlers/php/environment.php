<?php
// What PHP knows of the request: one variable a line, in order of names, and the raw body behind an empty line.
header('Content-Type: text/plain');
ksort($_SERVER);
foreach ($_SERVER as $name => $value) {
    if (is_string($value) && $name !== 'PHP_SELF') {
        echo $name, '=', $value, "\n";
    }
}
echo "\n", file_get_contents('php://input');
