package io.kafkalog.conformance;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;

/**
 * Runs conformance scripts on Apache Kafka's own log classes.
 *
 * <pre>
 *   SCRIPT WORKDIR     one script; result lines on standard output
 *   --many LISTFILE    many scripts in this JVM; each line is SCRIPT TAB WORKDIR TAB OUT
 *   --serve            such lines from standard input, until it ends; "good" or "bad" TAB OUT when OUT is there
 * </pre>
 *
 * The exit code is 0 when every script ran to its end, whatever its operations answered; 1 when a script could not
 * be run (unreadable, unknown operation, a batch that was not built as recorded); 2 for wrong usage.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws IOException {
        if (args.length == 1 && args[0].equals("--serve")) {
            serve();
            System.exit(0);
        }
        if (args.length != 2) {
            System.err.println("usage: SCRIPT WORKDIR | --many LISTFILE | --serve");
            System.exit(2);
        }
        boolean good = args[0].equals("--many") ? many(Path.of(args[1])) : one(Path.of(args[0]), Path.of(args[1]));
        // Kafka's executors may have left threads behind; the work is done.
        System.exit(good ? 0 : 1);
    }

    private static boolean one(Path script, Path workDir) throws IOException {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        boolean good = runScript(script, workDir, out);
        out.flush();
        return good;
    }

    private static boolean many(Path list) throws IOException {
        boolean good = true;
        for (String line : Files.readAllLines(list)) {
            if (!line.isBlank()) {
                good &= row(line.split("\t"));
            }
        }
        return good;
    }

    private static void serve() throws IOException {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t");
            out.println((row(parts) ? "good" : "bad") + "\t" + parts[2]);
        }
    }

    private static boolean row(String[] parts) throws IOException {
        if (parts.length != 3) {
            throw new IOException("expected SCRIPT TAB WORKDIR TAB OUT, not " + String.join("\t", parts));
        }
        Path out = Path.of(parts[2]);
        Path beside = out.resolveSibling(out.getFileName() + ".part");
        boolean good;
        try (OutputStream file = Files.newOutputStream(beside);
             PrintStream printer = new PrintStream(file, false, StandardCharsets.UTF_8)) {
            good = runScript(Path.of(parts[0]), Path.of(parts[1]), printer);
        }
        // An OUT that exists is whole.
        Files.move(beside, out, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        return good;
    }

    private static boolean runScript(Path script, Path workDir, PrintStream out) throws IOException {
        Files.createDirectories(workDir);
        List<String> lines = Files.readAllLines(script);
        try (ScriptRunner runner = new ScriptRunner(workDir)) {
            return runner.run(lines, out::println);
        }
    }
}
