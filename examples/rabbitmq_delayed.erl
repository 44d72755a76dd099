%% Writes the messages in RabbitMQ's plug-in for delayed messages on this node as JSON lines, for `from_rabbitmq.py`.
%%
%%   rabbitmqctl eval "$(cat rabbitmq_delayed.erl)"
%%
%% The file is written on the broker's machine. Nothing else is changed. Run it on each node, because each node has its
%% own messages. Tried with RabbitMQ 3.10 and plug-in 3.10.2, whose table has whole deliveries; since 3.13 it has
%% message containers.
Path = "/tmp/rabbitmq_delayed.jsonl",
Table = list_to_atom("rabbit_delayed_message" ++ atom_to_list(node())),
Names = [content_type, content_encoding, headers, delivery_mode, priority, correlation_id, reply_to, expiration,
         message_id, timestamp, type, user_id, app_id],
Line = fun({delay_entry, {delay_key, Due, Exchange}, Delivery, _Ref}) ->
    {basic_message, _, RoutingKeys, Undecoded, _, _} = element(5, Delivery),
    Content = rabbit_binary_parser:ensure_content_decoded(Undecoded),
    ['P_basic' | Values] = tuple_to_list(element(3, Content)),
    Said = [{N, V} || {N, V} <- lists:zip(Names, lists:sublist(Values, length(Names))), V =/= undefined],
    Properties = maps:from_list([case P of {headers, T} -> {headers, rabbit_misc:amqp_table(T)}; _ -> P end || P <- Said]),
    {resource, VHost, exchange, Name} = element(2, Exchange),
    [rabbit_json:encode(#{due_ms => Due, vhost => VHost, exchange => Name, routing_key => hd(RoutingKeys),
        properties => Properties, payload_encoding => <<"base64">>,
        payload => base64:encode(iolist_to_binary(lists:reverse(element(6, Content))))}), $\n]
end,
Entries = mnesia:dirty_match_object(Table, mnesia:table_info(Table, wild_pattern)),
ok = file:write_file(Path, [Line(Entry) || Entry <- Entries]),
{length(Entries), Path}.
