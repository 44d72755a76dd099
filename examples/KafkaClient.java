import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.zip.CRC32;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Schedules, moves and cancels messages in duemq with Kafka's own client. See docs/guides/kafka.md.
 *
 * <pre>
 * javac -cp "libs/*" KafkaClient.java
 * java -cp "libs/*:." KafkaClient localhost:9092 orders
 * </pre>
 */
public final class KafkaClient implements AutoCloseable {
    private static final String BUFFER = "duemq.buffer";

    private final KafkaProducer<byte[], byte[]> producer;

    public KafkaClient(String bootstrap) {
        Properties settings = new Properties();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, true);
        settings.put(ProducerConfig.ACKS_CONFIG, "all");
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** Delivers a value to a topic after a delay, which begins when the broker stores the record. */
    public void schedule(String topic, byte[] value, Duration delay) throws ExecutionException, InterruptedException {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(BUFFER, null, value);
        send(with(with(record, "duemq-topic", topic), "duemq-delay", Long.toString(delay.toMillis())));
    }

    /** As above, under a name of your choice: a repeat is not delivered twice. Move and cancel use the name, too. */
    public void schedule(String topic, byte[] value, Instant due, String name)
            throws ExecutionException, InterruptedException {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(BUFFER, partitionOf(name), null, value);
        with(with(record, "duemq-topic", topic), "duemq-deliver-at", due.toString());
        send(with(record, "duemq-name", name));
    }

    public void move(String name, Instant due) throws ExecutionException, InterruptedException {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(BUFFER, partitionOf(name), null, new byte[0]);
        send(with(with(record, "duemq-move", name), "duemq-deliver-at", due.toString()));
    }

    public void cancel(String name) throws ExecutionException, InterruptedException {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(BUFFER, partitionOf(name), null, new byte[0]);
        send(with(record, "duemq-cancel", name));
    }

    /** A name belongs to one shard: the shard of this partition. */
    private int partitionOf(String name) {
        CRC32 crc = new CRC32();
        crc.update(("n:" + name).getBytes(UTF_8));
        return (int) (crc.getValue() % producer.partitionsFor(BUFFER).size());
    }

    private static ProducerRecord<byte[], byte[]> with(
            ProducerRecord<byte[], byte[]> record, String name, String value) {
        record.headers().add(name, value.getBytes(UTF_8));
        return record;
    }

    private void send(ProducerRecord<byte[], byte[]> record) throws ExecutionException, InterruptedException {
        producer.send(record).get();
    }

    @Override
    public void close() {
        producer.close();
    }

    public static void main(String[] args) throws ExecutionException, InterruptedException {
        if (args.length != 2) {
            System.err.println("usage: KafkaClient BOOTSTRAP TOPIC");
            System.exit(2);
        }
        String run = UUID.randomUUID().toString();
        try (KafkaClient client = new KafkaClient(args[0])) {
            client.schedule(args[1], "in a second".getBytes(UTF_8), Duration.ofSeconds(1));
            client.schedule(args[1], "moved".getBytes(UTF_8), Instant.now().plusSeconds(3600), "moved-" + run);
            client.schedule(args[1], "cancelled".getBytes(UTF_8), Instant.now().plusSeconds(2), "cancelled-" + run);
            client.move("moved-" + run, Instant.now().plusSeconds(2));
            client.cancel("cancelled-" + run);
        }
        System.out.println("scheduled three messages, moved one, cancelled one");
    }
}
