/*
 * Every text of the page in English; the other languages have the same fields. Where something is put into a sentence it
 * is a function, since its place differs between languages.
 */
export const en = {
  // Everywhere
  close: 'Close',
  cancel: 'Cancel',
  copy: 'Copy',
  copied: 'Copied',
  copyCode: 'Copy code',
  save: 'Save',
  delete: 'Delete',
  rename: 'Rename',
  retry: 'Try again',
  more: 'More',
  loading: 'Loading …',
  skipToMessage: 'Skip to the message field',
  views: 'Views',
  openSidebar: 'Show chats',
  closeSidebar: 'Hide chats',
  noSuchView: 'There is nothing under this address.',
  viewFailed: 'This part of the page could not be loaded.',

  // Views
  chat: 'Chat',
  models: 'Models',
  server: 'Server',
  playground: 'Playground',

  // The server's state
  offline: 'The server cannot be reached. The page goes on by itself once it is back.',
  restarting: 'The server does not take new requests at the moment.',
  keyTitle: 'This server asks for a key',
  keyText: 'Its admin makes one with "corral key create <name>". It is kept until this tab is closed.',
  keyField: 'Key',
  keyWrong: 'The server does not know this key.',
  keyUse: 'Continue',
  storageFault: (reason: string) => `Chats are not kept in this browser: ${reason}`,

  // Chats
  newChat: 'New chat',
  chats: 'Chats',
  searchChats: 'Search chats',
  noChats: 'What you ask stays in this browser.',
  untitled: 'New chat',
  pin: 'Pin',
  unpin: 'Unpin',
  deleteChatTitle: 'Delete this chat?',
  deleteChatText: (title: string) => `"${title}" and all its branches are deleted from this browser.`,
  chatGone: 'This chat is not in this browser.',

  // The conversation
  greeting: 'What is on your mind?',
  model: 'Model',
  chooseModel: 'Choose a model',
  findModel: 'Find a model',
  noModels: 'No model is here yet.',
  getModel: 'Get a model',
  inMemory: 'in memory',
  message: 'Message',
  messagePlaceholder: 'Ask anything',
  send: 'Send',
  stop: 'Stop',
  you: 'You',
  answerOf: (model: string) => `Answer of ${model}`,
  thoughts: 'Thoughts',
  thinking: 'Thinking …',
  edit: 'Edit',
  saveOnly: 'Save',
  saveAndSend: 'Send',
  regenerate: 'Answer again',
  regenerateWith: 'Answer again with',
  continue: 'Continue',
  previousVersion: 'Previous version',
  nextVersion: 'Next version',
  versionOf: (at: number, count: number) => `${at} of ${count}`,
  deleteMessage: 'Delete with what follows',
  toEnd: 'To the end',
  answering: 'Answering',
  answered: (text: string) => `Answer complete. ${text}`,
  stoppedNote: 'Stopped.',
  cutNote: 'The answer reached its longest length.',
  droppedNote: (count: number) =>
    count === 1
      ? 'The oldest message was left out, since the context is full.'
      : `The ${count} oldest messages were left out, since the context is full.`,
  tryShorter: 'Try without the oldest messages',
  waitingStatus: 'Waiting for the server …',
  loadingStatus: (percent: string) => `Loading the model ${percent}`,
  promptStatus: (percent: string) => `Reading the conversation ${percent}`,
  queueStatus: 'Waiting for a free slot …',
  reconnecting: 'The connection was lost. Trying to continue …',
  speed: (tokens: string) => `${tokens} tokens/s`,
  firstText: (time: string) => `first text after ${time}`,
  contextFill: (used: string, size: string) => `${used} of ${size} tokens of context`,
  tokens: (count: string) => `${count} tokens`,
  callsTool: (name: string) => `Calls ${name}`,
  toolResult: (name: string) => `Result of ${name}`,
  giveResult: 'Give the result'
}

/** All texts of the page, in one language. */
export type Texts = typeof en
