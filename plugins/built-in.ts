import type { FoundPlugin } from '../core/plugins/plugin.ts'
import runtimes from '../runtimes/llama-cpp/index.ts'
import llamaServer from '../runtimes/llama-server/index.ts'
import remote from '../runtimes/remote/index.ts'
import adoption from './adoption/index.ts'
import apiAnthropic from './api-anthropic/index.ts'
import apiBatches from './api-batches/index.ts'
import apiFiles from './api-files/index.ts'
import apiLlama from './api-llama/index.ts'
import apiLmstudio from './api-lmstudio/index.ts'
import apiNative from './api-native/index.ts'
import apiOllama from './api-ollama/index.ts'
import apiOpenai from './api-openai/index.ts'
import audit from './audit/index.ts'
import cluster from './cluster/index.ts'
import clusterRay from './cluster-ray/index.ts'
import conversion from './conversion/index.ts'
import docs from './docs/index.ts'
import downloads from './download/index.ts'
import hardware from './hardware/index.ts'
import corralHub from './hubs/corral/index.ts'
import csghub from './hubs/csghub/index.ts'
import huggingface from './hubs/huggingface/index.ts'
import modelscope from './hubs/modelscope/index.ts'
import url from './hubs/url/index.ts'
import metrics from './metrics/index.ts'
import scheduler from './scheduler/index.ts'
import security from './security/index.ts'
import storage from './storage/index.ts'
import tracing from './tracing/index.ts'
import usage from './usage/index.ts'
import web from './web/index.ts'

/**
 * The plugins that come with corral, in the order of their sections in `config.yaml`. The order of their start follows
 * from what they need.
 */
export const builtInPlugins: FoundPlugin[] = [
  security,
  usage,
  storage,
  hardware,
  runtimes,
  downloads,
  huggingface,
  csghub,
  modelscope,
  corralHub,
  url,
  conversion,
  scheduler,
  llamaServer,
  remote,
  cluster,
  clusterRay,
  adoption,
  apiNative,
  apiOpenai,
  apiBatches,
  apiAnthropic,
  apiLlama,
  apiLmstudio,
  apiOllama,
  apiFiles,
  audit,
  metrics,
  tracing,
  docs,
  web
].map(plugin => ({ ...plugin, builtIn: true }))
