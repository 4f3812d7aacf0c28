import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Opens three transactions in the namespace acme/orders, prints "ready", and stays connected until stdin ends. */
public class OpenTransactions {
    private static final String NAMESPACE = "persistent://acme/orders/";
    private static PulsarClient client;

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        Consumer<String> billing = subscribe("placed", "billing");
        Consumer<String> search = subscribe("placed", "search");
        Consumer<String> importer = subscribe("raw", "importer");
        Consumer<String> audit = subscribe("raw", "audit");
        send("placed", null, "before");
        send("raw", null, "a", "b", "c");

        Transaction first = begin(10);
        send("placed", first, "one", "two");
        importer.acknowledgeAsync(receive(importer, 1).getMessageId(), first).get();
        importer.acknowledgeAsync(receive(importer, 1).getMessageId(), first).get();
        send("placed", null, "behind");

        Transaction second = begin(20);
        send("placed", second, "three");
        send("shipped", second, "four");
        audit.acknowledgeCumulativeAsync(receive(audit, 2).getMessageId(), second).get();

        Transaction third = begin(1);
        billing.acknowledgeCumulativeAsync(receive(billing, 1).getMessageId(), third).get();
        receive(search, 1);

        System.out.println("ready");
        while (System.in.read() >= 0) { }
        Runtime.getRuntime().halt(0);
    }

    private static Consumer<String> subscribe(String topic, String name) throws Exception {
        return client.newConsumer(Schema.STRING).topic(NAMESPACE + topic).subscriptionName(name).subscribe();
    }

    private static Transaction begin(int timeoutHours) throws Exception {
        return client.newTransaction().withTransactionTimeout(timeoutHours, TimeUnit.HOURS).build().get();
    }

    private static void send(String topic, Transaction transaction, String... texts) throws Exception {
        ProducerBuilder<String> builder = client.newProducer(Schema.STRING).topic(NAMESPACE + topic);
        try (Producer<String> producer = builder.sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (String text : texts) {
                (transaction == null ? producer.newMessage() : producer.newMessage(transaction)).value(text).send();
            }
        }
    }

    private static Message<String> receive(Consumer<String> consumer, int count) throws Exception {
        Message<String> last = null;
        for (int received = 0; received < count; received++) {
            last = consumer.receive(30, TimeUnit.SECONDS);
        }
        return last;
    }
}
