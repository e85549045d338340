import { parentPort } from 'node:worker_threads'
import { type DigestOrder, DigestWork } from './digest-work.ts'

const port = parentPort!
const work = new DigestWork(reply => port.postMessage(reply))
port.on('message', (order: DigestOrder) => work.order(order))
