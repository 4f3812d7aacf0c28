import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Commits a transaction, aborts another, and leaves a third one open. Only Pulsar's Java client has transactions. */
public class Transactions {
    public static void main(String[] arguments) throws Exception {
        String input = arguments[1];
        String subscription = arguments[2];
        String output = arguments[3];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
                Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(input)
                        .subscriptionName(subscription).subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer(Schema.BYTES).topic(output).create()) {
            begin(client, consumer, producer).commit().get();
            begin(client, consumer, producer).abort().get();
            begin(client, consumer, producer);
        }
        System.exit(0); // threads of the client would go on
    }

    private static Transaction begin(PulsarClient client, Consumer<byte[]> consumer, Producer<byte[]> producer)
            throws Exception {
        Transaction transaction = client.newTransaction().withTransactionTimeout(2, TimeUnit.HOURS).build().get();
        Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
        consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
        producer.newMessage(transaction).value(message.getValue()).send();
        return transaction;
    }
}
