<?php
echo 'hello world!!';
