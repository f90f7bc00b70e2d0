<?php
// The ten newest orders behind an offset, on a database connection that is
// opened for this request and closed behind it. The offset is bound, never
// pasted into the statement; what is no whole number counts as 0.
$offset = filter_var($_GET['offset'] ?? 0, FILTER_VALIDATE_INT, ['options' => ['min_range' => 0, 'default' => 0]]);

header('Content-Type: application/json');

$database = @pg_connect(getenv('FREIGHT_DATABASE'), PGSQL_CONNECT_FORCE_NEW);
$result = $database ? pg_query_params($database, <<<'SQL'
    SELECT orders.id, orders.createtime::text, orders.goods_name, users.nickname, users.mobileno
    FROM orders JOIN users ON users.id = orders.users_id
    ORDER BY orders.id DESC OFFSET $1 LIMIT 10
    SQL, [$offset]) : false;
if ($result === false) {
    // The seed's program answered 200 and FAIL, which would hide the failure.
    error_log($database ? pg_last_error($database) : 'connect to the database: ' . (error_get_last()['message'] ?? 'unknown'));
    http_response_code(503);
    exit('{"return_code":"FAIL","data":[]}');
}
$orders = pg_fetch_all($result, PGSQL_ASSOC);
foreach ($orders as &$order) {
    $order['id'] = (int) $order['id'];
}
unset($order);
pg_close($database);

echo json_encode(['return_code' => $orders ? 'SUCCESS' : 'FAIL', 'data' => $orders], JSON_UNESCAPED_UNICODE);
