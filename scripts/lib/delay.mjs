// Passes TCP connections on, each byte so many milliseconds later. Arguments: the milliseconds, and LISTEN:TARGET ports.
import net from 'node:net';

const [delay, ...ports] = process.argv.slice(2);

function forward(from, to) {
  from.on('data', (bytes) => setTimeout(() => to.writable && to.write(bytes), Number(delay)));
  from.on('end', () => setTimeout(() => to.end(), Number(delay)));
  from.on('error', () => to.destroy());
}

for (const [listen, target] of ports.map((pair) => pair.split(':').map(Number))) {
  net.createServer({ allowHalfOpen: true }, (client) => {
    const server = net.connect({ port: target, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
    client.setNoDelay(true);
    forward(client, server);
    forward(server, client);
  }).listen(listen, '127.0.0.1');
}
