<?php
// Sends the client on: ?to=URL, with 302 unless ?status=N.
header('Location: ' . $_GET['to'], true, (int) ($_GET['status'] ?? 302));
