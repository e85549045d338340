import type { FoundPlugin } from '../core/plugins/plugin.ts'
import runtimes from '../runtimes/llama-cpp/index.ts'
import llamaServer from '../runtimes/llama-server/index.ts'
import images from '../runtimes/remote/images/index.ts'
import remote from '../runtimes/remote/index.ts'
import programs from '../runtimes/remote/programs/index.ts'
import speech from '../runtimes/remote/speech/index.ts'
import apiAnthropic from './apis/anthropic/index.ts'
import apiBatches from './apis/batches/index.ts'
import apiConversations from './apis/conversations/index.ts'
import apiFiles from './apis/files/index.ts'
import apiLlama from './apis/llama/index.ts'
import apiLmstudio from './apis/lmstudio/index.ts'
import apiMcp from './apis/mcp/index.ts'
import apiNative from './apis/native/index.ts'
import apiOllama from './apis/ollama/index.ts'
import apiOpenai from './apis/openai/index.ts'
import docs from './apis/reference/index.ts'
import cluster from './machines/cluster/index.ts'
import link from './machines/link/index.ts'
import clusterRay from './machines/ray/index.ts'
import conversion from './models/conversion/index.ts'
import adoption from './models/discovery/index.ts'
import downloads from './models/download/index.ts'
import corralHub from './models/hubs/corral.ts'
import { csghub, huggingface } from './models/hubs/hf-like.ts'
import modelscope from './models/hubs/modelscope.ts'
import url from './models/hubs/url.ts'
import storage from './models/storage/index.ts'
import web from './page/index.ts'
import audit from './people/audit/index.ts'
import security from './people/security/index.ts'
import usage from './people/usage/index.ts'
import hardware from './running/hardware/index.ts'
import scheduler from './running/scheduler/index.ts'
import tools from './tools/mcp/index.ts'
import metrics from './watching/metrics/index.ts'
import tracing from './watching/tracing/index.ts'

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
  programs,
  speech,
  images,
  cluster,
  clusterRay,
  link,
  adoption,
  apiNative,
  apiOpenai,
  apiBatches,
  apiAnthropic,
  apiLlama,
  apiLmstudio,
  apiOllama,
  apiMcp,
  apiFiles,
  apiConversations,
  tools,
  audit,
  metrics,
  tracing,
  docs,
  web
].map(plugin => ({ ...plugin, builtIn: true }))
